"""One variable at a time: how names are recognised, and what readers make of values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.lint.rules.environment_names import name_faults
from runbook.lint.rules.environment_values import number_read, value_faults
from runbook.lint.variables import known_variables
from runbook.model.nccl_devices import parse_device_selection

from .environment_findings import findings, ids, with_variable

NAMES = st.one_of(
    st.sampled_from(sorted(known_variables())),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,40}", fullmatch=True),
    st.builds("{}_{}".format, st.sampled_from(["NCCL", "NCLL", "TORCH_NCCL", "JAX", "PET", "GLOO"]), st.text("ABIX_1")),
)
TEXTS = st.one_of(
    st.text(),
    st.text("0123456789-+.xXeEkKmMgG _,;:^=~$%{}/*[]"),
    st.lists(st.sampled_from(["mlx5_1", "eth0", "^", "=", ",", " ", "ALL", "Ring", ":", ";", "0x", "1"])).map("".join),
)


@examples(500)
@given(NAMES, TEXTS)
def test_no_name_and_no_value_is_too_strange(name: str, text: str) -> None:
    faults = [*name_faults(name), *value_faults(name, text)]
    assert all(fault.id and fault.message for fault in faults)


@examples(200)
@given(st.sampled_from(["NCCL_BUFFSIZE", "NCCL_IB_TIMEOUT", "NCCL_IB_GID_INDEX", "TORCH_FR_BUFFER_SIZE"]), TEXTS)
def test_a_number_that_is_passed_over_in_silence_is_read_as_it_is_written(name: str, text: str) -> None:
    if text.strip() and not list(value_faults(name, text)):
        base = 16 if "x" in text.lower() else 10
        assert number_read(known_variables()[name], text) == int(text.strip(), base)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("NCCL_IB_DISABLE", "true", 0),
        ("NCCL_BUFFSIZE", "8M", 8),
        ("NCCL_BUFFSIZE", " 0x10", 16),
        ("NCCL_BUFFSIZE", "010", 8),
        ("NCCL_BUFFSIZE", "08", 0),
        ("NCCL_IB_GID_INDEX", "-1", -1),
        ("NCCL_BUFFSIZE", "", None),
        ("TORCH_FR_BUFFER_SIZE", "0x10", 0),
        ("TORCH_FR_BUFFER_SIZE", "10k", 10),
        ("TORCH_FR_BUFFER_SIZE", "many", None),
    ],
)
def test_numbers_are_read_as_strtoll_and_stoi_do(name: str, text: str, value: int | None) -> None:
    assert number_read(known_variables()[name], text) == value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NCCL_DEBG", "NCCL_DEBUG"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOKCET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IFNAME_SOCKET", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKETIFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_RETRY_COUNT", "NCCL_IB_RETRY_CNT"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
        ("NCCL_NET_GDR_LEVL", "NCCL_NET_GDR_LEVEL"),
        ("NCC_IB_HCA", "NCCL_IB_HCA"),
        ("TORCH_NCLL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("TORCH_DISTRIBUTED_DEBG", "TORCH_DISTRIBUTED_DEBUG"),
        ("TORCH_NCCL_DEBUG", "NCCL_DEBUG"),
        ("NCCL_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"),
        ("GLOO_SOCKET_INFAME", "GLOO_SOCKET_IFNAME"),
        ("JAX_PLATFORM", "JAX_PLATFORMS"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("UCX_NET_DEVICE", "UCX_NET_DEVICES"),
        ("UCX_IB_GID_IDX", "UCX_IB_GID_INDEX"),
        ("FI_PROVIDR", "FI_PROVIDER"),
        ("FI_EFA_USE_DEVICE_RMDA", "FI_EFA_USE_DEVICE_RDMA"),
    ],
)
def test_a_slip_of_the_pen_is_told_from_what_was_meant(written: str, meant: str) -> None:
    (fault,) = name_faults(written)
    assert (fault.id, fault.help) == ("misspelt-variable", f"did you mean `{meant}`?")


@pytest.mark.parametrize(
    "name",
    [
        *("TORCH_HOME", "TORCH_LOGS", "TORCH_CUDA_ARCH_LIST", "TORCH_COMPILE_DEBUG", "TORCHINDUCTOR_CACHE_DIR"),
        *("TP_SIZE", "RCCL_DEBUG", "HCCL_SOCKET_IFNAME", "UCCL_DEBUG", "CUDA_HOME", "CUDA_PATH", "XLA_FLAGS", "PATH"),
        *("NCCL_OFI_PROTOCOL", "NCCL_TESTS_SPLIT", "NCCL_FASTRAK_IFNAME", "NCCL_VERSION", "NCCL_HOME", "RANKING"),
        *("UCX_HOME", "UCX_UD_MLX5_TIMEOUT", "UCX_POSIX_SEG_SIZE", "FI_PSM3_LOCK_LEVEL", "OMP_PLACES", "OMP_PROC_BIND"),
        *("http_proxy", "https_proxy", "PETROL", "WORLD", "MASTER", "PYTORCH_ENABLE_MPS_FALLBACK", "NCCL_UCX_TLS"),
    ],
)
def test_what_others_read_is_left_alone(name: str) -> None:
    assert list(name_faults(name)) == []


def test_sister_names_are_not_slips_of_each_other() -> None:
    for name in ("NCCL_IB_FIFO_SL", "NCCL_P2P_LL128_THRESHOLD", "NCCL_NVLS_NCHANNELS_MAX_X"):
        assert [fault.id for fault in name_faults(name)] == ["unknown-variable"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("NCCL_IB_DISABLE", "true", ["not-a-switch"]),
        ("NCCL_IB_DISABLE", "false", []),
        ("NCCL_IB_TIMEOUT", "31", ["slow-timeout"]),
        ("NCCL_IB_TIMEOUT", "24", []),
        ("NCCL_IB_TIMEOUT", "0", ["endless-timeout"]),
        ("NCCL_IB_TIMEOUT", "32", ["endless-timeout"]),
        ("NCCL_IB_TIMEOUT", "-3", ["out-of-range"]),
        ("NCCL_IB_RETRY_CNT", "8", ["out-of-range"]),
        ("NCCL_BUFFSIZE", "99999999999999999999", ["out-of-range"]),
        ("NCCL_BUFFSIZE", "4 MiB", ["unit-in-number"]),
        ("NCCL_BUFFSIZE", "4_194_304", ["not-a-number"]),
        ("NCCL_BUFFSIZE", "1e6", ["not-a-number"]),
        ("NCCL_DEBUG", "info", []),
        ("NCCL_DEBUG", "ERROR", ["bad-choice"]),
        ("NCCL_DEBUG", "NONE", []),
        ("NCCL_NET_GDR_LEVEL", "pix", ["bad-choice"]),
        ("NCCL_NET_GDR_LEVEL", "2", ["legacy-level"]),
        ("NCCL_ALGO", "ring,tree", []),
        ("NCCL_ALGO", "rings", ["bad-choice"]),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:true", ["bad-choice"]),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments=True", ["bad-choice"]),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:128,expandable_segment:True", ["bad-choice"]),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:", ["bad-choice"]),
        ("NCCL_PROTO", "allreduce:ll;broadcast:^simple", []),
        ("NCCL_DEBUG_SUBSYS", "^ALL", []),
        ("NCCL_NET", "Whatever plugin", []),
        ("NCCL_NET", "TCP", ["bad-choice"]),
        ("TORCH_DISTRIBUTED_DEBUG", "", ["bad-choice"]),
        ("TORCH_DISTRIBUTED_DEBUG", "off", []),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "on", ["not-a-switch"]),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "", ["not-a-number"]),
        ("JAX_ENABLE_X64", "on", []),
        ("JAX_ENABLE_X64", "2", ["not-a-switch"]),
        ("TORCH_NCCL_BLOCKING_WAIT", "y", ["debugging"]),
        ("NCCL_IB_HCA", "mlx5_1", ["prefix-trap"]),
        ("NCCL_IB_HCA", "mlx5_10", []),
        ("NCCL_IB_HCA", "mlx5_0", []),
        ("NCCL_IB_HCA", "=mlx5_1", []),
        ("NCCL_IB_HCA", "mlx5_0:1", []),
        ("NCCL_IB_HCA", "mlx5_0:a", ["bad-selection"]),
        ("NCCL_IB_HCA", "^mlx5_0,^mlx5_3", ["bad-selection"]),
        ("NCCL_IB_HCA", "mlx5_[0-3]", ["bad-selection"]),
        ("NCCL_IB_HCA", "mlx5_0;mlx5_3", ["bad-selection"]),
        ("NCCL_IB_HCA", "eth0", ["bad-selection"]),
        ("NCCL_SOCKET_IFNAME", "10.0.0.0/24", ["bad-selection"]),
        ("NCCL_SOCKET_IFNAME", "fe80::1", ["bad-selection"]),
        ("NCCL_SOCKET_IFNAME", "=eth1", []),
        ("NCCL_SOCKET_IFNAME", "ens5", []),
        ("GLOO_SOCKET_IFNAME", "^lo", ["gloo-selector"]),
        ("GLOO_SOCKET_IFNAME", "eth1", []),
        ("GLOO_SOCKET_IFNAME", "eth*", ["bad-selection"]),
        ("NCCL_TOPO_FILE", "~/topo.xml", ["not-expanded"]),
        ("ANY_OTHER", "/opt/lib:$LD_LIBRARY_PATH", ["not-expanded"]),
        ("ANY_OTHER", "%USERPROFILE%/x", ["not-expanded"]),
        ("ANY_OTHER", "pa$$w0rd$x and 100%", []),
        ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${rank}]:", []),
    ],
)
def test_values(name: str, text: str, expected: list[str]) -> None:
    assert [fault.id for fault in value_faults(name, text)] == expected


@examples(100)
@given(st.text("^=abm5_1,0", max_size=8), st.text("abm5_10", min_size=1, max_size=4))
def test_a_selection_takes_what_nccl_takes(text: str, device: str) -> None:
    """NCCL's own way (`parseStringList` and `matchIfList`), written down once more."""
    rest, excludes, exact = text, False, False
    if rest[:1] == "^":
        rest, excludes = rest[1:], True
    if rest[:1] == "=":
        rest, exact = rest[1:], True
    hit = any(device == one if exact else device.startswith(one) for one in rest.split(",") if one)
    assert parse_device_selection(text).takes(device) == (hit != excludes)


def test_many_unknown_names_are_all_reported(tmp_path: Path) -> None:
    names = [f"NCCL_{chr(65 + index // 26)}{chr(65 + index % 26)}_ODDITY" for index in range(200)]
    text = "env:\n" + "".join(f"  {name}: 1\n" for name in names) + "nodes: {a: {address: 10.0.0.1, gpus: 1}}\n"
    assert ids(findings(tmp_path, text)) == ["unknown-variable"] * 200


@examples(60)
@given(
    st.sampled_from(sorted(known_variables())),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=30),
)
def test_no_value_in_a_file_makes_a_rule_fail(tmp_path_factory: pytest.TempPathFactory, name: str, text: str) -> None:
    findings(tmp_path_factory.mktemp("any"), with_variable(name, text))
