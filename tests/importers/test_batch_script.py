"""Batch scripts: what of them is an inventory, what is told instead, and what stays a remark."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import draft_text
from runbook.files.playbook import load_launch
from runbook.files.yaml_document import parse_document
from runbook.importers.convert import draft_of_foreign_inventory, read_foreign_inventory
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory
from runbook.model.playbook import LaunchSettings

WHOLE = """\
    #!/bin/bash
    #SBATCH --job-name=llama
    #SBATCH -N2 --ntasks-per-node=1
    #SBATCH --nodelist=gn[01-02]
    #SBATCH --gres=gpu:h100:8
    source /opt/venv/bin/activate
    export NCCL_DEBUG=INFO OMP_NUM_THREADS=4
    DATA=/data/c4
    HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
    MASTER_PORT=29400
    cd /work
    srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 \\
        --rdzv_endpoint=$HEAD:$MASTER_PORT train.py --data $DATA --lr 1e-4 > out.log 2>&1
    """


def imported(text: str, file: str = "train.sbatch") -> tuple[Inventory, str]:
    """Our inventory and its text; it must load without a problem, and so must its launch."""
    ours = draft_text(draft_of_foreign_inventory(read_foreign_inventory(dedent(text), file), "imported"))
    document = parse_document(ours, "ours.yml")
    examined = examine_inventory(document, environ={})
    assert examined.problems == (), ours
    assert examined.inventory is not None
    return examined.inventory, ours


def launch_in(text: str) -> LaunchSettings:
    """The launch of our inventory."""
    (stage,) = (stage for stage in load_launch(parse_document(text, "x.yml")).stages if stage.kind == "launch")
    return stage.launch


def refused(text: str, file: str = "train.sbatch") -> Problem:
    with pytest.raises(FilesWrong) as wrong:
        read_foreign_inventory(dedent(text), file)
    return wrong.value.problems[0]


def test_a_whole_script() -> None:
    found, text = imported(WHOLE)
    assert [(node.name, len(node.gpus), node.activate) for node in found.nodes] == [
        ("gn01", 8, ". /opt/venv/bin/activate"),
        ("gn02", 8, ". /opt/venv/bin/activate"),
    ]
    assert found.rendezvous.port == 29400
    assert found.env == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    launch = launch_in(text)
    assert launch.launcher == "torchrun"
    assert launch.workdir == "/work"
    assert "HEAD" not in text
    assert launch.command == ("train.py", "--data", "/data/c4", "--lr", "1e-4")


def test_without_nodes_the_launch_is_told_for_a_playbook() -> None:
    found = refused(WHOLE.replace("#SBATCH --nodelist=gn[01-02]\n", "\n"))
    assert found.id == "import.no-nodes"
    assert found.message == "this script does not say which nodes, only how many: 2"
    first, *more = (found.help or "").splitlines()
    assert first == "in its job Slurm says which: runbook run PLAYBOOK -i slurm"
    assert more[1].startswith("- launch: {launcher: torchrun, command: [train.py, --data, /data/c4")


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        ("#SBATCH --nodes=4", "--nodes says 4 nodes, and --nodelist names 2"),
        ("#SBATCH --ntasks=8\nsrun python train.py", "--ntasks says 8, and 16 are to be started on 2 nodes"),
        ("#SBATCH --ntasks=16\nsrun torchrun train.py", "--ntasks says 16, and 2 are to be started on 2 nodes"),
        (
            "#SBATCH --ntasks-per-node=8\nsrun torchrun train.py",
            "--ntasks-per-node says 8: Slurm would start `torchrun` so often on each node",
        ),
        ("export OUT=$SCRATCH/x", "OUT: its value is only known where the script runs"),
        ("export WANDB_API_KEY=0123456789", "WANDB_API_KEY: a secret, not copied"),
        ("module load cuda", "what `module load cuda` sets up belongs into `activate:`"),
        ("mkdir -p out", "what else the script does is not carried over"),
        ("srun ./all_reduce_perf -b 8", "`srun`: what it starts is not seen"),
        (
            "srun torchrun train.py\nsrun torchrun after.py",
            "one launch is carried over, that of line 3, and this is another",
        ),
        ("srun torchrun --nproc_per_node=4 train.py", "--gpus-per-node says 8 a node, and 4 ranks are started on each"),
        ("srun torchrun train.py $SEED", "no shell fills in $SEED: write the value itself"),
        ("#SBATCH --export=ALL,TMPDIR", "TMPDIR: its value is only known where the script runs"),
        ("#SBATCH --export=ALL,OUT=$SCRATCH/x", "OUT: its value is only known where the script runs"),
        ("#SBATCH --chdir=/work/%u", "`sbatch`: not carried over: --chdir"),
        ("#SBATCH -O", "`sbatch`: not carried over: --overcommit"),
        ("#SBATCH --overcommit -L matlab:2", "`sbatch`: not carried over: --overcommit, --licenses"),
        ("srun -K --label torchrun train.py", "`srun`: not carried over: --kill-on-bad-exit, --label"),
        ("srun --export=ALL,TMPDIR torchrun train.py", "TMPDIR: its value is only known where the script runs"),
        ("srun bash -c 'nvidia-smi; torchrun train.py'", "what else the script does is not carried over"),
        ("srun bash -c 'torchrun train.py && sync'", "what else the script does is not carried over"),
        ("cd /work && make && torchrun train.py", "what else the script does is not carried over"),
        ("[ $DEBUG ] && torchrun train.py", "`torchrun`: it may not run, and is carried over as if it did"),
        ("torchrun --standalone train.py", "`torchrun`: not carried over: --standalone"),
        (
            "accelerate launch --mixed_precision bf16 --num_machines 2 train.py",
            "not carried over: --mixed-precision",
        ),
        ("mpirun -np 16 -x NCCL_IB_HCA python train.py", "NCCL_IB_HCA: its value is only known where the script runs"),
        ("mpirun -np 16 -x API_TOKEN=0123456789 python train.py", "API_TOKEN: a secret, not copied"),
        ("mpirun --bind-to none python train.py", "`mpirun`: not carried over: --bind-to"),
        ("hostname\n#SBATCH --exclusive", "sbatch does not read this: a command stands above it"),
    ],
)
def test_what_is_not_carried_over_is_a_remark(line: str, remark: str) -> None:
    script = f"#!/bin/sh\n#SBATCH -w gn[1-2] --gpus-per-node=8\n{line}\n"
    _, text = imported(script)
    assert remark in " ".join(text.replace("#", " ").split())
    assert "0123456789" not in text


@pytest.mark.parametrize("option", ["--hf_token hf_abcdefghijklmnopqrstuvwxyz", "--password=geheim"])
def test_no_secret_of_a_command_is_copied(option: str) -> None:
    for nodes in ("", "#SBATCH -w gn1"):
        script = f"#!/bin/sh\n#SBATCH -N 2\n{nodes}\nsrun torchrun train.py {option} --steps 4\n"
        told = imported(script)[1] if nodes else str(refused(script))
        assert "is a secret, not copied" in " ".join(told.replace("#", " ").split())
        assert "--steps" in told
        assert "hf_abc" not in told
        assert "geheim" not in told


LOGINS = ["http://jdoe:{}@proxy:3128", "postgres://u:{}@db/x", "https://me:p/{}@mlflow?a=b", "https://:{}@[::1]/"]
PLACES = [
    "export https_proxy={}",
    "export DATABASE_URL='{}' NCCL_DEBUG=INFO",
    "ML={}\nsrun torchrun train.py --tracking-uri $ML",
    "srun torchrun train.py --tracking-uri={}",
    "srun torchrun train.py --verbose logger.uri={}",
    "srun torchrun train.py {} 8",
    "srun torchrun train.py +logger.uri={}",
    "https_proxy={} srun torchrun train.py",
    "conda install {}",
    "source <(curl {})",
]


@given(
    st.sampled_from([*LOGINS, "Authorization: Bearer {}", "curl -u me:{} https://host"]),
    st.sampled_from(PLACES),
    st.text("abcdefghijkmnopqrstuvwxyz", min_size=3, max_size=8).map(lambda word: f"hunter2{word}9"),
    st.booleans(),
)
def test_no_secret_is_copied_whatever_it_is_called(login: str, place: str, secret: str, nodes: bool) -> None:
    value = login.format(secret)
    line = place.format(value if value.count(" ") == 0 or "'" in place else f'"{value}"')
    script = f"#!/bin/sh\n#SBATCH -N 2\n{'#SBATCH -w gn1' if nodes else ''}\n{line}\nsrun torchrun last.py\n"
    told = imported(script)[1] if nodes else str(refused(script)) + (refused(script).help or "")
    assert secret not in told


OTHER = "export NCCL_P2P_DISABLE=1\ncd /wrong\ntorchrun --nproc-per-node 2 debug.py\n"
NEVER = {
    "a function": "usage() {\n@}\n",
    "a function in bash's words": "function usage {\n  @\n}\n",
    "a function on two lines": "usage ()\n{\n@\n}\n",
    "a function with branches": "usage() {\n  if [ $1 ]; then\n@  fi\n}\n",
    "a comment": ": <<'COMMENT'\n@COMMENT\n",
    "a file": "cat > run.sh <<EOF\n@EOF\n",
    "a file that is indented": 'cat > run.sh <<-"EOF"\n\t@\tEOF\n',
    "two files": "cat <<A <<B\nA\n@B\n",
}


@pytest.mark.parametrize("where", NEVER)
@pytest.mark.parametrize("before", [True, False])
def test_what_never_runs_is_not_carried_over(where: str, before: bool) -> None:
    body, real = NEVER[where].replace("@", OTHER), "srun torchrun --nproc-per-node 8 train.py\n"
    found, text = imported("#!/bin/sh\n#SBATCH -w gn1\n" + (body + real if before else real + body))
    assert (len(found.nodes[0].gpus), found.env) == (8, {})
    launch = launch_in(text)
    assert (launch.command, "/wrong" in text) == (("train.py",), False)
    told = " ".join(text.replace("#", " ").split())
    assert ("is never called" in told) is ("function" in where)
    assert ("its here-document is not carried over" in told) is ("function" not in where)


@pytest.mark.parametrize(
    "branch",
    [
        "if [ $DEBUG ]; then\n@else\n  export OTHER=1\nfi\n",
        "for i in 1 2; do\n@done\n",
        "case $1 in\n  x)\n@  ;;\nesac\n",
        "while true\ndo\n  if true\n  then\n@  fi\ndone\n",
        "run() {\n@}\n[ $DEBUG ] && run\n",
    ],
)
def test_what_may_not_run_is_told_and_gives_way_to_what_does(branch: str) -> None:
    script = "#!/bin/sh\n#SBATCH -w gn1\nexport NCCL_DEBUG=INFO\n" + branch.replace("@", OTHER)
    for last in ("", "srun torchrun --nproc-per-node 8 train.py\n"):
        found, text = imported(script + last)
        told = " ".join(text.replace("#", " ").split())
        assert found.env["NCCL_P2P_DISABLE"] == "1"
        assert "NCCL_P2P_DISABLE: it may not run, and is carried over as if it did" in told
        assert "`cd /wrong`: it may not run" in told
        assert "INFO: it may" not in told
        assert ("`torchrun`: it may not run" in told) is (not last)
        assert len(found.nodes[0].gpus) == (8 if last else 2)


def test_a_function_that_is_called_runs_and_so_does_what_only_looks_like_a_document() -> None:
    lines = (
        'echo "use <<EOF"\nN=$((1<<2))\nmain() {\n  export A=1\n  srun torchrun train.py\n}\nmain "$@"\nexport B=2\n'
    )
    found, text = imported(f"#!/bin/sh\n#SBATCH -w gn1\n{lines}")
    assert (found.env, "may not run" in text) == ({"A": "1", "B": "2"}, False)
    assert "command: [train.py]" in text


def test_a_variable_with_two_values_is_told() -> None:
    script = "#SBATCH -w gn1\nif true; then\n  export A=1 B=1\nelse\n  export A=2 B=1\nfi\n"
    _, text = imported(script)
    told = " ".join(text.replace("#", " ").split())
    assert "train.sbatch:5: A: it has another value above, and this one is carried over" in told
    assert "B: it has another value" not in told


def test_a_url_without_a_password_is_copied() -> None:
    urls = ["https://mlflow:5000/x@y", "s3://bucket/a", "ssh://git@host/x", "http://$USER:$PASSWORD@proxy"]
    found, _ = imported("#SBATCH -w gn1\nexport " + " ".join(f"URL_{at}='{url}'" for at, url in enumerate(urls[:3])))
    assert list(found.env.values()) == urls[:3]
    assert "URL: its value is only known" in " ".join(
        imported(f"#SBATCH -w gn1\nexport URL={urls[3]}")[1].replace("#", " ").split()
    )


@pytest.mark.parametrize(
    ("lines", "env", "workdir"),
    [
        ("#SBATCH --export=ALL,A=1,B=two -D /work\nsrun torchrun train.py", {"A": "1", "B": "two"}, "/work"),
        ("srun --export=ALL,A=1 --chdir /work torchrun train.py", {"A": "1"}, "/work"),
        ("srun -n16 -D/work --export=A=1,B=2 python train.py", {"A": "1", "B": "2"}, "/work"),
        ("A=1\nsrun --export=ALL,A torchrun train.py", {"A": "1"}, None),
        ("A=1\nexport A B=2\nsrun torchrun train.py", {"A": "1", "B": "2"}, None),
        ("mpirun -np 2 -x A=1 -x B=2 --wdir /work python train.py", {"A": "1", "B": "2"}, "/work"),
        ("mpirun -np 2 bash -c 'export A=1; cd /work; python -m torch.distributed.run train.py'", {"A": "1"}, "/work"),
        ("srun env A=1 B=2 torchrun train.py", {"A": "1", "B": "2"}, None),
        ("cd /work && A=1 torchrun train.py | tee log", {"A": "1"}, "/work"),
        ("cd /work; export A=1; torchrun train.py || exit 1", {"A": "1"}, "/work"),
        ("cd /work\ncd train || exit\ntorchrun train.py", {}, "/work/train"),
    ],
)
def test_settings_are_carried_over_wherever_they_stand(lines: str, env: dict[str, str], workdir: str | None) -> None:
    found, text = imported(f"#!/bin/sh\n#SBATCH -w gn[1-2] --gpus-per-node=8\n{lines}\n")
    launch = launch_in(text)
    assert (found.env, launch.workdir) == (env, workdir)
    assert launch.command[-1] == "train.py"
    assert "not carried over" not in text


@pytest.mark.parametrize(
    "line",
    [
        "cd /work&&torchrun train.py --lr 1",
        "cd /work;torchrun train.py --lr 1;",
        "( cd /work; torchrun train.py --lr 1 )",
        "(cd /work && torchrun train.py --lr 1) &",
        "A=$(hostname -i) torchrun train.py --lr 1 2>&1 | tee log",
        "A=`hostname -f` torchrun train.py --lr 1",
        "ARGS=(--lr 1); torchrun train.py ${ARGS[@]}",
        "LR=1\nLR=2; LR=1; torchrun train.py --lr $LR",
        "torchrun train.py > out.log --lr 1 # the end",
        "torchrun train.py 2>/dev/null --lr 1 &> all.log",
        "yes | torchrun train.py --lr 1",
        "timeout 3600 nice -n 10 torchrun train.py --lr 1",
        "time srun torchrun train.py --lr 1 || exit 1",
        "srun bash -c 'torchrun train.py --lr 1 2>&1 | tee log.$SLURM_PROCID'",
        "train() { srun torchrun train.py --lr 1; }\ntrain",
        "case $1 in\n  x) : ;;\nesac\nsrun torchrun train.py --lr 1 ;",
        "if [ $D ]; then torchrun --nproc_per_node=1 debug.py; exit; fi\nsrun torchrun train.py --lr 1",
        "for i in 1 2; do torchrun probe.py; done\nsrun torchrun train.py --lr 1",
        "if srun torchrun train.py --lr 1; then echo fine; fi",
    ],
)
def test_a_launch_is_found_wherever_it_stands_on_its_line(line: str) -> None:
    _, text = imported(f"#!/bin/bash\n#SBATCH -w gn1\n{line}\n")
    launch = launch_in(text)
    assert launch.command == ("train.py", "--lr", "1")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("torchrun train.py --tag run#5 --lr 1", ["train.py", "--tag", "run#5", "--lr", "1"]),
        ("torchrun train.py --sep '|' --lr 1", ["train.py", "--sep", "|", "--lr", "1"]),
        ("torchrun train.py --sql 'select 1;' --lr 1", ["train.py", "--sql", "select 1;", "--lr", "1"]),
        ('torchrun train.py --cond "a && b > c"', ["train.py", "--cond", "a && b > c"]),
        ("torchrun train.py --use_auth_token", ["train.py", "--use_auth_token"]),
        ("torchrun train.py a\\;b", ["train.py", "a;b"]),
    ],
)
def test_what_only_looks_like_an_operator_stays_in_its_word(line: str, command: list[str]) -> None:
    _, text = imported(f"#!/bin/bash\n#SBATCH -w gn1\n{line}\n")
    launch = launch_in(text)
    assert launch.command == tuple(command)
    assert "secret" not in text


@pytest.mark.parametrize(
    "line",
    [
        "if [ $D ]; then export NCCL_DEBUG=INFO; fi",
        "for i in 1 2; do export NCCL_DEBUG=INFO; done",
        "(( X > 0 )) && export NCCL_DEBUG=INFO",
        "[ -f x ] && cd /y && export NCCL_DEBUG=INFO",
        "[ -f x ] || { export A=1; export NCCL_DEBUG=INFO; }",
        "grep -q fast /etc/kind && export NCCL_DEBUG=INFO",
        "command -v ibstat >/dev/null && export NCCL_DEBUG=INFO",
    ],
)
def test_what_may_not_run_is_told_on_one_line_as_well(line: str) -> None:
    found, text = imported(f"#!/bin/bash\n#SBATCH -w gn1\n{line}\nsrun torchrun train.py\n")
    assert found.env["NCCL_DEBUG"] == "INFO"
    told = " ".join(text.replace("#", " ").split())
    assert "NCCL_DEBUG: it may not run" in told
    assert "`torchrun`: it may not" not in told


@pytest.mark.parametrize(
    ("lines", "workdir"),
    [
        ("cd /tmp\ncd ~/work", "~/work"),
        ("cd /a || cd b", "/a"),
        ("cd /work\ncd -", None),
        ("cd /work\ncd $X", None),
        ("cd /work\nif [ $A ]; then\n  cd a\nelse\n  cd b\nfi", "/work"),
        ("#SBATCH -D /work\ncd sub", "/work/sub"),
    ],
)
def test_folders_follow_each_other_as_far_as_they_are_known(lines: str, workdir: str | None) -> None:
    _, text = imported(f"#!/bin/bash\n#SBATCH -w gn1\n{lines}\nsrun torchrun train.py\n")
    launch = launch_in(text)
    assert launch.workdir == workdir


def test_a_host_that_only_the_script_knows_replaces_no_node() -> None:
    for line in ("srun --nodes=1 -w ${nodes[$i]} torchrun train.py", 'srun -w "$HEAD" torchrun train.py'):
        found, text = imported(f"#!/bin/bash\n#SBATCH -w gn[1-2]\n{line}\n")
        assert [node.name for node in found.nodes] == ["gn1", "gn2"]
        assert "--nodelist: its value is only known where the script runs" in " ".join(text.replace("#", " ").split())


def test_what_runbook_works_out_itself_gets_no_remark() -> None:
    lines = "MASTER_ADDR=$(hostname)\nexport MASTER_ADDR\nmpirun -x MASTER_ADDR -x MASTER_PORT -np 2 python train.py"
    _, text = imported(f"#!/bin/bash\n#SBATCH -w gn1\n{lines}\n")
    assert "MASTER_" not in text


@pytest.mark.parametrize(
    "option", ["--gpus-per-task=1", "--gpus=16", "--gres=gpu", "--gres=gpu:8,x:1", "--tres-per-node=gres/gpu:4"]
)
def test_ranks_with_gpus_are_not_taken_for_ranks_on_cpus(option: str) -> None:
    text = imported(f"#!/bin/sh\n#SBATCH -w gn1,gn2 --ntasks-per-node=8 {option}\nsrun python train.py\n")[1]
    assert "processes: 8" not in text


@pytest.mark.parametrize(
    ("line", "hosts", "each"),
    [
        ("srun -w gn[1-2] --ntasks-per-node=4 --gpus-per-node=4 python train.py", ["gn1", "gn2"], 4),
        ("mpirun -np 8 -H gn1:4,gn2:4 python train.py", ["gn1", "gn2"], 4),
        ("mpirun -np 8 --host gn1,gn2 -N 4 python train.py", ["gn1", "gn2"], 4),
        ("horovodrun -np 8 --hosts gn1:4,gn2:4 python train.py", ["gn1", "gn2"], 4),
        ("horovodrun -np 8 -H gn1:4,gn2:4 python train.py", ["gn1", "gn2"], 4),
    ],
)
def test_a_line_that_names_the_hosts_needs_no_other(line: str, hosts: list[str], each: int) -> None:
    found, _ = imported(f"#!/bin/sh\n{line}\n", "run.sh")
    assert [(node.name, len(node.gpus)) for node in found.nodes] == [(name, each) for name in hosts]


def test_ranks_without_gpus_are_told_how_to_be_written() -> None:
    text = imported("#!/bin/sh\n#SBATCH -w gn1,gn2 --ntasks-per-node=4\nsrun python train.py\n")[1]
    assert "for ranks on CPUs write `processes: 4` in place of `gpus: 4`" in " ".join(text.replace("#", " ").split())


def test_ranks_a_node_are_those_of_srun_where_it_starts_them() -> None:
    found, _ = imported("#!/bin/sh\n#SBATCH -w gn1,gn2 --ntasks-per-node=4\nsrun python train.py\n")
    assert [len(node.gpus) for node in found.nodes] == [4, 4]


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("torchrun --nnodes=2 train.py\n", "import.no-nodes"),
        ("#SBATCH -w gn[04-01]\ntrue\n", "import.range"),
        ("#!/bin/sh\necho '{}'\n", "import.program"),
        ("#!/bin/sh\n#SBATCH --comment='x\ntrue\n", "import.script-syntax"),
    ],
)
def test_what_is_refused(text: str, id: str) -> None:
    assert refused(text, "run.sh").id == id


def test_a_script_that_is_none_of_slurms_is_not_sent_to_it() -> None:
    found = refused("#!/bin/sh\ntorchrun --nnodes=2 train.py\n", "run.sh")
    assert (found.help or "").startswith("make an inventory of them: runbook inventory init HOST…\n")
    assert "- launch: {launcher: torchrun, command: [train.py]}" in (found.help or "")


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        ("A=\"--lr 1 --name 'x y'\"\nsrun torchrun train.py $A", ["train.py", "--lr", "1", "--name", "x y"]),
        ("A=(\n  --nproc_per_node 4  # ranks\n  --rdzv_id $RANDOM\n)\nsrun torchrun ${A[@]} train.py", ["train.py"]),
        ('A=(--lr 1 --name "x y")\nsrun torchrun train.py "${A[@]}"', ["train.py", "--lr", "1", "--name", "x y"]),
        ('D="${DATA:-/data}"\nsrun torchrun train.py "$D/c4"', ["train.py", "/data/c4"]),
        ("T=/opt/bin/torchrun\nsrun $T \\\n  -m pkg.train", ["python", "-m", "pkg.train"]),
        ("nodes=( $( scontrol show hostnames $X ) )\nsrun torchrun train.py", ["train.py"]),
        ('L="torchrun --nproc_per_node 4"\nsrun bash -c "$L train.py --a"', ["train.py", "--a"]),
        ('L="accelerate launch --rank \\$X"\nsrun bash -c "$L train.py"', ["train.py"]),
        ("N=1 torchrun train.py --n $N", ["train.py", "--n", "$N"]),
    ],
)
def test_what_a_shell_would_fill_in_is_filled_in(lines: str, command: list[str]) -> None:
    _, text = imported(f"#!/bin/bash\n#SBATCH -w gn1\n{lines}\n")
    launch = launch_in(text)
    assert launch.command == tuple(command)


@pytest.mark.parametrize(
    "option", ["--rdzv_endpoint=$HEAD:29511", "--master_port 29511", "--rdzv-endpoint [::1]:29511"]
)
def test_the_port_is_the_lines(option: str) -> None:
    found, _ = imported(f"#!/bin/sh\n#SBATCH -w gn1\nHEAD=$(hostname)\nsrun torchrun {option} train.py\n")
    assert found.rendezvous.port == 29511


def test_a_manifest_is_told_how_its_pods_are_named() -> None:
    manifest = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: llama, namespace: train}\n"
    found = refused(manifest, "job.yml")
    assert found.id == "import.manifest"
    assert "-i kubernetes:train:training.kubeflow.org/job-name=llama" in (found.help or "")
