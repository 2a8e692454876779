package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The checks of this file try the kernel's interfaces for observation.

// manyClients is the number of open files that ten thousand clients and their backends need.
const manyClients = 11_000

func (e *examiner) openFiles(context.Context) Check {
	c := Check{Name: "open files", State: Yes, For: "many clients"}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		c.State, c.Detail = No, err.Error()
		return c
	}
	c.Detail = fmt.Sprintf("%d, and up to %d when asked for", r.Cur, r.Max)
	if r.Max < manyClients {
		c.State, c.Hint = Limited, fmt.Sprintf("ten thousand clients need %d: raise LimitNOFILE or the hard limit of ulimit -n", manyClients)
	}
	return c
}

// arrivalTimes requests timestamps for the data that a TCP socket receives.
func (e *examiner) arrivalTimes(context.Context) Check {
	c := Check{Name: "arrival times", State: Yes, For: "telling the server's time from the wake-up of the client", Detail: "SO_TIMESTAMPING on TCP"}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_RX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE)
		unix.Close(fd) // it was never connected
	}
	if err != nil {
		c.State, c.Detail = No, permitted(err)
	}
	return c
}

// event opens a performance counter of this thread and reads it after some work.
func event(kind uint32, config uint64) (uint64, error) {
	attr := unix.PerfEventAttr{Type: kind, Config: config, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	sum := 0
	for i := range 1_000_000 {
		sum += i
	}
	if sum == 0 {
		return 0, unix.EINVAL
	}
	var value [8]byte
	if _, err := unix.Read(fd, value[:]); err != nil {
		return 0, err
	}
	return *(*uint64)(unsafe.Pointer(&value[0])), nil
}

func (e *examiner) eventCheck(name, what string, kind uint32, config uint64) Check {
	c := Check{Name: name, For: what}
	paranoid, err := e.read("proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		c.State, c.Detail = No, "the kernel has no performance events"
		return c
	}
	switch v, err := event(kind, config); {
	case err == nil && v > 0:
		c.State, c.Detail = Yes, "perf_event_open, perf_event_paranoid = "+paranoid
	case err == nil:
		c.State, c.Detail = No, "opened, and it does not count"
	case os.IsPermission(err):
		c.State, c.Detail, c.Hint = No, "not permitted, perf_event_paranoid = "+paranoid, "as root: sysctl kernel.perf_event_paranoid=1"
	default:
		c.State, c.Detail = No, err.Error()
	}
	return c
}

func (e *examiner) softwareEvents(context.Context) Check {
	return e.eventCheck("software events", "CPU profiles by time", unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_TASK_CLOCK)
}

func (e *examiner) hardwareEvents(context.Context) Check {
	c := e.eventCheck("hardware events", "cycles, instructions, cache misses", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES)
	if c.Detail == unix.ENOENT.Error() || c.Detail == unix.EOPNOTSUPP.Error() {
		c.Detail = "the processor's counters are not passed on to this machine"
	}
	return c
}

// tracing returns the directory of the kernel's tracing files, or "".
func (e *examiner) tracing() string {
	for _, dir := range []string{"sys/kernel/tracing", "sys/kernel/debug/tracing"} {
		if e.exists(dir + "/events") {
			return dir
		}
	}
	return ""
}

func (e *examiner) tracepoints(context.Context) Check {
	c := Check{Name: "tracepoints", For: "scheduler delays, system calls of a server"}
	switch dir := e.tracing(); {
	case dir == "" && e.exists("sys/kernel/tracing"):
		c.State, c.Detail, c.Hint = No, "the tracing file system is not mounted, or hidden", "as root: mount -t tracefs nodev /sys/kernel/tracing"
	case dir == "":
		c.State, c.Detail = No, "the kernel has no tracing"
	default:
		if _, err := e.read(dir + "/events/sched/sched_switch/id"); err != nil {
			c.State, c.Detail, c.Hint = No, permitted(err), "run as root"
			return c
		}
		c.State, c.Detail = Yes, "/"+dir
	}
	return c
}

func (e *examiner) kprobes(context.Context) Check {
	c := Check{Name: "kprobes", For: "any function of the kernel, as bcc tools use"}
	switch {
	case e.exists("sys/bus/event_source/devices/kprobe"):
		c.State, c.Detail = Yes, "compiled in"
	default:
		c.State, c.Detail = No, "not compiled into this kernel"
	}
	return c
}

func (e *examiner) typeInformation(context.Context) Check {
	c := Check{Name: "BTF", State: Yes, Detail: "/sys/kernel/btf/vmlinux", For: "eBPF programs that run on any kernel"}
	if !e.exists("sys/kernel/btf/vmlinux") {
		c.State, c.Detail = No, "the kernel does not describe its types"
	}
	return c
}

// programs loads the smallest possible eBPF program: return 0.
func (e *examiner) programs(context.Context) Check {
	c := Check{Name: "eBPF", State: Yes, For: "the server's time split by cause, without its help"}
	// mov r0, 0; exit
	code := &[16]byte{0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0}
	license := &[4]byte{'G', 'P', 'L', 0}
	var pinned runtime.Pinner // the kernel gets addresses that Go does not track
	pinned.Pin(code)
	pinned.Pin(license)
	defer pinned.Unpin()
	attr := struct {
		kind, count      uint32
		instructions     uint64
		license          uint64
		logLevel, logLen uint32
		log              uint64
	}{kind: unix.BPF_PROG_TYPE_TRACEPOINT, count: 2}
	attr.instructions = uint64(uintptr(unsafe.Pointer(code)))
	attr.license = uint64(uintptr(unsafe.Pointer(license)))
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	switch {
	case errno == 0:
		unix.Close(int(fd))
		c.Detail = "a program for tracepoints was loaded"
	case os.IsPermission(errno):
		c.State, c.Detail, c.Hint = No, "not permitted", "run as root, or with the capabilities bpf and perfmon"
	default:
		c.State, c.Detail = No, errno.Error()
	}
	return c
}

func (e *examiner) perf(ctx context.Context) Check {
	c := Check{Name: "perf", State: Yes, For: "profiles of servers"}
	out, err := e.command(ctx, nil, "perf", "--version")
	if gone, ok := missing(c, err, "apt-get install linux-perf"); ok {
		return gone
	}
	if err != nil {
		c.State, c.Detail = No, out
		return c
	}
	c.Detail = out
	if _, err := e.command(ctx, nil, "perf", "record", "-q", "-e", "cpu-clock", "-o", os.DevNull, "true"); err != nil {
		c.State, c.Detail, c.Hint = No, c.Detail+", and it cannot record", "as root: sysctl kernel.perf_event_paranoid=1"
	}
	return c
}

func (e *examiner) strace(ctx context.Context) Check {
	c := Check{Name: "strace", State: Limited, For: "which system calls are made, not how long they take", Hint: "it slows a server down two to four times: count with it, do not time"}
	out, err := e.command(ctx, nil, "strace", "-f", "-c", "-o", os.DevNull, "true")
	if gone, ok := missing(c, err, "apt-get install strace"); ok {
		return gone
	}
	if err != nil {
		c.State, c.Detail, c.Hint = No, out, "as root: sysctl kernel.yama.ptrace_scope=0"
		return c
	}
	c.Detail = "traces a process that it starts"
	return c
}

func (e *examiner) bpftrace(ctx context.Context) Check {
	c := Check{Name: "bpftrace", State: Yes, For: "questions by hand"}
	out, err := e.command(ctx, nil, "bpftrace", "--version")
	if gone, ok := missing(c, err, "apt-get install bpftrace"); ok {
		return gone
	}
	c.Detail = out
	if err != nil {
		c.State = No
	}
	return c
}

// ownNetwork makes a command run in a network namespace of its own.
func ownNetwork(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
}

func (e *examiner) namespaces(ctx context.Context) Check {
	c := Check{Name: "network namespaces", State: Yes, Detail: "a process was started in one", For: "client and server on hosts of their own"}
	if _, err := e.command(ctx, ownNetwork, "true"); err != nil {
		c.State, c.Detail, c.Hint = No, permitted(err), "run as root"
	}
	return c
}

func (e *examiner) netem(ctx context.Context) Check {
	c := Check{Name: "netem", State: Yes, Detail: "a delay was set in a network of its own", For: "delay and loss by the kernel"}
	instead := "weir lab has a relay that delays without it"
	out, err := e.command(ctx, ownNetwork, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
	if gone, ok := missing(c, err, "apt-get install iproute2; "+instead); ok {
		return gone
	}
	if err != nil {
		detail := strings.TrimPrefix(out, "Error: ")
		if detail == "" {
			detail = permitted(err)
		}
		c.State, c.Detail, c.Hint = No, detail, instead
	}
	return c
}
