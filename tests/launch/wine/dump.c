/* What a Windows program is given: its arguments and its environment, as UTF-8 between NULs.

   Written to the file of our own name (dump.exe: dump, python.exe: python) and RANK in DUMP_FOLDER. Ends with the code
   in DUMP_EXIT_0 (RANK 0) or in DUMP_EXIT; a program of another name reads a variable that starts with that name. */
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>
#include <windows.h>

static void put(FILE *file, const wchar_t *text) {
  static char bytes[200000];
  int length = WideCharToMultiByte(CP_UTF8, 0, text, -1, bytes, sizeof bytes, NULL, NULL);
  fwrite(bytes, 1, length, file);
}

int wmain(int argc, wchar_t **argv) {
  wchar_t path[MAX_PATH], name[_MAX_FNAME], to[4 * MAX_PATH], key[100];
  GetModuleFileNameW(NULL, path, MAX_PATH);
  _wsplitpath(path, NULL, NULL, name, NULL);
  const wchar_t *rank = _wgetenv(L"RANK") ? _wgetenv(L"RANK") : L"", *folder = _wgetenv(L"DUMP_FOLDER");
  if (folder) {
    _snwprintf(to, 4 * MAX_PATH, L"%ls\\%ls%ls", folder, name, rank);
    FILE *file = _wfopen(to, L"wb");
    wchar_t here[MAX_PATH];
    GetCurrentDirectoryW(MAX_PATH, here);
    put(file, here);
    for (int i = 1; i < argc; i++) put(file, argv[i]);
    fwrite("\0\1", 1, 2, file); /* an empty word, then one that no test uses: here the environment begins */
    fputc(0, file);
    for (wchar_t *entry = GetEnvironmentStringsW(); *entry; entry += wcslen(entry) + 1) put(file, entry);
    fclose(file);
  }
  _snwprintf(key, 100, L"%ls_EXIT_%ls", name, rank);
  wchar_t *code = _wgetenv(key);
  if (!code) {
    _snwprintf(key, 100, L"%ls_EXIT", name);
    code = _wgetenv(key);
  }
  return code ? (int)wcstoul(code, NULL, 10) : 0;
}
