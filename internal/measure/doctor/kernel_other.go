//go:build !linux

package doctor

import (
	"context"
	"runtime"
)

func elsewhere(name, what string) Check {
	return Check{Name: name, State: No, Detail: "not on " + runtime.GOOS, For: what}
}

func (e *examiner) openFiles(context.Context) Check { return elsewhere("open files", "many clients") }

func (e *examiner) arrivalTimes(context.Context) Check {
	return elsewhere("arrival times", "telling the server's time from the wake-up of the client")
}

func (e *examiner) softwareEvents(context.Context) Check {
	return elsewhere("software events", "CPU profiles by time")
}

func (e *examiner) hardwareEvents(context.Context) Check {
	return elsewhere("hardware events", "cycles, instructions, cache misses")
}

func (e *examiner) tracepoints(context.Context) Check {
	return elsewhere("tracepoints", "scheduler delays, system calls of a server")
}

func (e *examiner) kprobes(context.Context) Check {
	return elsewhere("kprobes", "any function of the kernel, as bcc tools use")
}

func (e *examiner) typeInformation(context.Context) Check {
	return elsewhere("BTF", "eBPF programs that run on any kernel")
}

func (e *examiner) programs(context.Context) Check {
	return elsewhere("eBPF", "the server's time split by cause, without its help")
}

func (e *examiner) perf(context.Context) Check { return elsewhere("perf", "profiles of servers") }

func (e *examiner) strace(context.Context) Check {
	return elsewhere("strace", "which system calls are made, not how long they take")
}

func (e *examiner) bpftrace(context.Context) Check { return elsewhere("bpftrace", "questions by hand") }

func (e *examiner) namespaces(context.Context) Check {
	return elsewhere("network namespaces", "client and server on hosts of their own")
}

func (e *examiner) netem(context.Context) Check {
	return elsewhere("netem", "delay and loss by the kernel")
}
