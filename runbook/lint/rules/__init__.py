"""The rules, by what they look at. A rule is a function that yields a `Problem` for everything it finds; it never
raises, whatever stands in a file. The id of each problem has a section in `lint/pages/FAMILY.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runbook.lint.rules.access import (
    address_of_another,
    connect_timeout,
    jump_to_self,
    link_local_address,
    local_twins,
    loopback_address,
    mixed_families,
    name_case,
    network_address,
    padding_differs,
    pod_without_address,
    same_login,
    unused_kubernetes,
    unused_ssh,
)
from runbook.lint.rules.across_files import node_in_no_play, rendezvous_taken
from runbook.lint.rules.environment import written_in_inventory, written_in_playbook
from runbook.lint.rules.environment_ranks import (
    contradictions_in_inventory,
    contradictions_in_playbook,
    nccl_unused,
    network_of_inventory,
    network_of_playbook,
    shared_host_id,
)
from runbook.lint.rules.gpus import (
    gloo_on_gpus,
    gpus_from_one,
    gpus_per_node,
    many_processes,
    nccl_on_windows,
    nccl_without_gpus,
    shared_gpu,
    some_without_gpus,
    unused_processes,
)
from runbook.lint.rules.network import (
    ephemeral_port,
    infiniband_rate,
    infiniband_unused,
    interface_name,
    port_is_ssh,
    port_not_open,
    ports_twice,
    ports_with_ssh,
    privileged_port,
    rendezvous_address,
    service_port,
    two_systems,
    windows_host_name,
    windows_interface,
    windows_name_dialled,
    windows_python3,
)
from runbook.lint.rules.node_values import (
    activate_no_effect,
    activate_other_shell,
    foreign_path,
    key_format,
    key_in_project,
    not_expanded,
    placeholder,
    python_not_a_program,
    python_too_old,
    template_in_inventory,
)
from runbook.lint.rules.playbooks import misplaced_templates, shadowed_facts, stages, templates_in_vars, unused_vars
from runbook.lint.rules.security import host_keys_off, known_formats, named_secrets, secrets_in_commands
from runbook.lint.rules.yaml_values import unused_anchors, yaml_surprises
from runbook.lint.subject import InventoryFile, PlaybookFile
from runbook.load.document import Document
from runbook.model.errors import Problem

DOCUMENT_RULES: tuple[Callable[[Document], Iterable[Problem]], ...] = (
    yaml_surprises,
    unused_anchors,
    host_keys_off,
    known_formats,
    named_secrets,
    secrets_in_commands,
)
"""Of any YAML file."""

INVENTORY_RULES: tuple[Callable[[InventoryFile], Iterable[Problem]], ...] = (
    written_in_inventory,
    network_of_inventory,
    contradictions_in_inventory,
    nccl_unused,
    shared_host_id,
    connect_timeout,
    jump_to_self,
    unused_ssh,
    unused_kubernetes,
    pod_without_address,
    address_of_another,
    link_local_address,
    local_twins,
    loopback_address,
    mixed_families,
    name_case,
    network_address,
    padding_differs,
    same_login,
    activate_no_effect,
    activate_other_shell,
    gloo_on_gpus,
    gpus_from_one,
    gpus_per_node,
    many_processes,
    nccl_on_windows,
    nccl_without_gpus,
    shared_gpu,
    some_without_gpus,
    unused_processes,
    infiniband_rate,
    infiniband_unused,
    interface_name,
    foreign_path,
    key_format,
    key_in_project,
    not_expanded,
    python_not_a_program,
    python_too_old,
    placeholder,
    template_in_inventory,
    ephemeral_port,
    port_is_ssh,
    port_not_open,
    ports_twice,
    ports_with_ssh,
    privileged_port,
    service_port,
    rendezvous_address,
    two_systems,
    windows_host_name,
    windows_interface,
    windows_name_dialled,
    windows_python3,
)

PLAYBOOK_RULES: tuple[Callable[[PlaybookFile], Iterable[Problem]], ...] = (
    stages,
    unused_vars,
    shadowed_facts,
    templates_in_vars,
    misplaced_templates,
    written_in_playbook,
    network_of_playbook,
    contradictions_in_playbook,
)

TOGETHER_RULES: tuple[Callable[[Sequence[InventoryFile], Sequence[PlaybookFile]], Iterable[Problem]], ...] = (
    node_in_no_play,
    rendezvous_taken,
)
"""Of all files of one lint together: what two of them say of one machine."""
