"""CPUs and memory are read from fake procfs and cgroup trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.worker.host import CoreGroup, core_group, free_memory, processor, usable_cpus

GIB = 1 << 30


class Machine:
    """A folder with the files of /proc and /sys/fs/cgroup that matter."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable: {16 * GIB // 1024} kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cpus(self, affinity: int) -> int:
        return usable_cpus(affinity, self.proc, self.cgroups)

    def cores(self, *affinity: int) -> CoreGroup:
        return core_group(affinity, self.proc, self.cgroups)

    def memory(self) -> int:
        return free_memory(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_cgroups_the_affinity_mask_and_available_memory_decide(machine: Machine) -> None:
    assert machine.cpus(6) == 6
    assert machine.memory() == 16 * GIB


def test_a_v2_quota_limits_the_cpus(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box\n")
    machine.write("cgroup/box/cpu.max", "350000 100000\n")
    assert machine.cpus(8) == 3
    assert machine.cpus(2) == 2


def test_a_quota_below_one_cpu_still_gives_one(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box\n")
    machine.write("cgroup/box/cpu.max", "50000 100000\n")
    assert machine.cpus(8) == 1


def test_a_v1_quota_limits_the_cpus_and_minus_one_means_none(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "5:memory:/box\n3:cpu,cpuacct:/box\n0::/\n")
    machine.write("cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "200000\n")
    machine.write("cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    assert machine.cpus(8) == 2
    machine.write("cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n")
    assert machine.cpus(8) == 8


def test_an_ancestors_limit_counts_too(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/pod/container\n")
    machine.write("cgroup/pod/container/cpu.max", "max 100000\n")
    machine.write("cgroup/pod/cpu.max", "100000 100000\n")
    machine.write("cgroup/pod/container/memory.max", "max\n")
    machine.write("cgroup/pod/container/memory.current", "0\n")
    machine.write("cgroup/pod/memory.max", f"{4 * GIB}\n")
    machine.write("cgroup/pod/memory.current", f"{GIB}\n")
    assert machine.cpus(8) == 1
    assert machine.memory() == 3 * GIB


def test_page_cache_that_can_be_given_up_is_free_memory(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box\n")
    machine.write("cgroup/box/memory.max", f"{4 * GIB}\n")
    machine.write("cgroup/box/memory.current", f"{3 * GIB}\n")
    machine.write("cgroup/box/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")
    assert machine.memory() == 3 * GIB


def test_a_v1_limit_is_found_at_the_mounts_root_when_the_path_is_the_hosts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/docker/123abc\n")
    machine.write("cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    machine.write("cgroup/memory/memory.usage_in_bytes", f"{GIB // 2}\n")
    assert machine.memory() == 3 * GIB // 2


def test_v1s_huge_number_means_no_limit(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/\n")
    machine.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write("cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    assert machine.memory() == 16 * GIB


def test_a_group_over_its_limit_has_no_memory_left(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box\n")
    machine.write("cgroup/box/memory.max", "1000\n")
    machine.write("cgroup/box/memory.current", "2000\n")
    assert machine.memory() == 0


def test_this_machine_can_be_read() -> None:
    assert usable_cpus() >= 1
    assert free_memory() > 0


def test_processes_share_cores_by_the_hosts_numbers_or_within_the_group_whose_quota_limits_them(
    machine: Machine,
) -> None:
    assert machine.cores(5, 1, 3) == CoreGroup("", [1, 3, 5])
    machine.write("proc/self/cgroup", "0::/box/inner\n")
    machine.write("cgroup/box/cpu.max", "250000 100000\n")
    machine.write("cgroup/box/inner/cpu.max", "max 100000\n")
    group = machine.cores(5, 1, 3)
    assert group.cores == [0, 1]
    assert group.name
    assert machine.cores(7, 8, 9) == group, "whatever CPUs their masks say, they share the quota"
    assert machine.cores(5, 1) == CoreGroup("", [1, 5]), "the quota allows no fewer"


def test_the_processor_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nModel name : Any X-1\n\nmodel name : Another\n")
    assert processor(tmp_path)["model name"] == "Any X-1"
    assert processor(tmp_path / "absent")["model name"]
