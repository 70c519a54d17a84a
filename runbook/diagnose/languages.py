"""What the system calls say in other languages, put into English, which the signs are written in."""

from __future__ import annotations

from collections.abc import Mapping

SAID: Mapping[str, tuple[str, ...]] = {
    "Connection refused": (
        "拒绝连接", "连接被拒绝", "拒絕連線", "连接遭拒绝", "积极拒绝", "Verbindungsaufbau abgelehnt", "Zielcomputer die Verbindung verweigerte", "Connexion refusée",
        "Conexión rehusada", "Connessione rifiutata", "Conexão recusada", "соединении отказано", "接続を拒否", "연결이 거부", "Połączenie odrzucone", "отверг запрос на подключение",
    ),
    "Connection timed out": (
        "连接超时", "連線逾時", "没有正确答复或连接的主机没有反应", "Wartezeit für die Verbindung ist abgelaufen", "Connexion terminée par expiration", "Tiempo de expiración excedido",
        "Expiró el tiempo de conexión", "Connessione scaduta", "Tempo esgotado para conexão", "Время ожидания соединения истекло", "接続がタイムアウト", "연결 시간 초과", "Upłynął limit czasu połączenia",
    ),
    "No route to host": (
        "没有到主机的路由", "沒有路由到主機", "Keine Route zum Zielrechner", "Aucun chemin d'accès pour atteindre", "No existe ninguna ruta", "Nessun instradamento", "Não há rota para o host",
        "Нет маршрута до узла", "ホストへの経路がありません", "호스트로 갈 루트가 없음",
    ),
    "Network is unreachable": (
        "网络不可达", "网络不可访问", "Das Netzwerk ist nicht erreichbar", "Le réseau n'est pas accessible", "La red es inaccesible", "Rete non raggiungibile", "A rede está fora de alcance",
        "Сеть недоступна", "ネットワークに届きません", "네트워크가 접근 불가능",
    ),
    "Connection reset by peer": (
        "连接被对方重设", "连接被对端重置", "强迫关闭了一个现有的连接", "連接被對方重設", "vom Kommunikationspartner zurückgesetzt", "vom Remotehost geschlossen", "Connexion ré-initialisée par le correspondant",
        "Conexión reinicializada por la máquina remota", "Соединение разорвано другой стороной", "接続が相手からリセット", "연결이 상대편에 의해 끊어짐",
    ),
    "Broken pipe": ("断开的管道", "管道已断开", "Datenübergabe unterbrochen", "Relais brisé", "Tubería rota", "Pipe rotta", "Обрыв канала", "パイプが切断", "파이프가 깨어짐"),
    "Address already in use": (
        "地址已被使用", "地址已在使用", "地址已經被使用", "只允许使用一次", "Adresse wird bereits verwendet", "nur jeweils einmal verwendet", "Adresse déjà utilisée", "dirección ya se está usando",
        "Indirizzo già in uso", "Endereço já em uso", "Адрес уже используется", "アドレスは既に使用", "이미 사용 중인 주소",
    ),
    "Cannot assign requested address": (
        "无法指定被请求的地址", "在其上下文中，该请求的地址无效", "Die angeforderte Adresse kann nicht zugewiesen", "Impossible d'assigner l'adresse demandée", "No se puede asignar la dirección",
        "Невозможно назначить запрошенный адрес", "要求されたアドレスに割り当て",
    ),
    "An attempt was made to access a socket in a way forbidden by its access permissions": (
        "访问权限不允许的方式", "aufgrund der Zugriffsrechte des Sockets", "interdite par ses autorisations d'accès", "no permitida por sus permisos de acceso", "запрещенным правами доступа",
        "アクセス許可で禁じられた方法", "액세스 권한에 의해 숨겨진 소켓",
    ),
    "Permission denied": ("权限不够", "权限被拒绝", "拒绝访问", "权限不足", "Keine Berechtigung", "Permission non accordée", "Permiso denegado", "Permesso negato", "Permissão negada", "Отказано в доступе", "許可がありません", "허가 거부"),
    "Name or service not known": (
        "未知的名称或服务", "不知道这样的主机", "Der Name oder der Dienst ist nicht bekannt", "Nom ou service inconnu", "Nombre o servicio desconocido", "Nome o servizio sconosciuto", "Nome ou serviço desconhecido",
        "Имя или служба не известны", "名前またはサービスが不明", "이름 혹은 서비스를 알 수 없음", "Der angegebene Host ist unbekannt", "Hôte inconnu", "Этот хост неизвестен",
    ),
    "No such file or directory": ("没有那个文件或目录", "系统找不到指定的文件", "Datei oder Verzeichnis nicht gefunden", "Aucun fichier ou dossier de ce", "No existe el archivo o el directorio", "File o directory non esistente", "Arquivo ou diretório inexistente", "Нет такого файла или каталога", "そのようなファイルやディレクトリはありません", "그런 파일이나 디렉터리가 없습니다"),
    "No space left on device": ("设备上没有空间", "磁盘空间不足", "Kein Speicherplatz", "kein Speicherplatz mehr", "Aucun espace disponible sur le périphérique", "No queda espacio en el dispositivo", "На устройстве не осталось", "デバイスに空き領域がありません", "장치에 남은 공간이 없음"),
    "Too many open files": ("打开的文件过多", "Zu viele offene Dateien", "Trop de fichiers ouverts", "Demasiados archivos abiertos", "Слишком много открытых файлов", "開いているファイルが多すぎます"),
    "Segmentation fault": ("段错误", "Speicherzugriffsfehler", "Erreur de segmentation", "Violación de segmento", "Errore di segmentazione", "Falha de segmentação", "Ошибка сегментирования", "セグメンテーション違反"),
    "terminated by signal 9": ("已杀死", "Getötet", "Processus arrêté", "Terminado (killed)", "Убито", "強制終了", "죽었음"),
}  # fmt: skip

ENGLISH = {phrase: english for english, phrases in SAID.items() for phrase in phrases}
LITERALS = tuple(phrase.encode().lower().decode() for phrase in ENGLISH)
"""Lower case as bytes are, which leaves letters beyond ASCII alone."""


def in_english(text: str) -> str:
    """The line with the phrases known here in English."""
    for phrase, english in ENGLISH.items():
        text = text.replace(phrase, english)
    return text
