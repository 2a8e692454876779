package residence

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The sums in the totals, by index.
const (
	sumRequests = iota
	sumBefore
	sumResidence
	sumFlush
	sumWrite
	sumRead
	sumLock
	sumWait
	sumRunQueue
	sums
)

// The value of a thread, by offset. All fields are times of the kernel's clock or durations, in
// nanoseconds; 0 means that the field does not apply.
const (
	threadSince  = 0  // when its request arrived
	threadCall   = 8  // when its current system call began
	threadQueued = 16 // how long it waited for a processor within that call
	threadWoken  = 24 // since when it has been runnable without running
	threadSize   = 32
)

// The stack of the programs, by offset.
const (
	stackThread  = -4 // thread ID
	stackProcess = -8 // process ID
	stackZero    = -12
	stackWord    = -24
	stackFresh   = -24 - threadSize // a thread's initial value
)

// Registers that survive a helper call: the context, the time, a thread's value, and a number.
const (
	regContext = asm.R6
	regNow     = asm.R7
	regThread  = asm.R8
	regNumber  = asm.R9
)

// origAx is the offset of the system call's number in its saved registers (struct pt_regs). The
// layout is part of the kernel's interface for debuggers.
const origAx = 120

// program runs at a tracepoint.
type program struct {
	tracepoint string
	code       asm.Instructions
}

// kinds are the system calls that are distinguished.
var kinds = []struct {
	sum   int
	calls []int32
}{
	{sumFlush, []int32{unix.SYS_FDATASYNC, unix.SYS_FSYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_MSYNC}},
	{sumWrite, []int32{unix.SYS_PWRITE64, unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITEV, unix.SYS_PWRITEV2}},
	{sumRead, []int32{unix.SYS_PREAD64, unix.SYS_READ, unix.SYS_READV, unix.SYS_PREADV, unix.SYS_PREADV2}},
	{sumLock, []int32{unix.SYS_FUTEX, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP}},
	{sumWait, []int32{
		unix.SYS_POLL, unix.SYS_PPOLL, unix.SYS_SELECT, unix.SYS_PSELECT6, unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT,
		unix.SYS_EPOLL_PWAIT2, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_GETEVENTS,
	}},
}

// programs returns the four programs. pid is the offset of the thread ID in the kernel's struct
// task_struct.
func programs(m maps, pid int32) []program {
	return []program{
		{"sys_enter", sysEnter(m)},
		{"sys_exit", sysExit(m)},
		{"sched_wakeup", schedWakeup(m, pid)},
		{"sched_switch", schedSwitch(m, pid)},
	}
}

// sysEnter: a thread that has a request and sends has answered it.
func sysEnter(m maps) asm.Instructions {
	code := join(
		begin(m),
		findThread(m, "exit"),
		clock(),
		asm.LoadMem(asm.R1, regThread, threadSince, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "exit"),
		asm.LoadMem(regNumber, regContext, 8, asm.DWord),
		asm.JEq.Imm(regNumber, unix.SYS_SENDTO, "answer"),
		asm.JEq.Imm(regNumber, unix.SYS_SENDMSG, "answer"),
		asm.StoreMem(regThread, threadCall, regNow, asm.DWord),
		reset(regThread, threadQueued),
		asm.Ja.Label("exit"),
	)
	// The residence goes into regNumber, which is no longer needed.
	answer := join(
		asm.Mov.Reg(regNumber, regNow),
		asm.Sub.Reg(regNumber, asm.R1),
		reset(regThread, threadSince),
		reset(regThread, threadCall),
		findTotals(m),
		add(sumResidence, regNumber),
		asm.Mov.Imm(asm.R1, 1),
		add(sumRequests, asm.R1),
	)
	return join(code, labelled("answer", answer), end())
}

// sysExit: a read from a socket starts a request; any other call within a request has taken
// time from it.
func sysExit(m maps) asm.Instructions {
	code := join(
		begin(m),
		// The registers saved on entry say which call it was.
		asm.LoadMem(asm.R3, regContext, 0, asm.DWord),
		asm.Add.Imm(asm.R3, origAx),
		readKernel(stackWord, 8),
		asm.LoadMem(regNumber, asm.RFP, stackWord, asm.DWord),
		findThread(m, "fresh"),
		asm.Ja.Label("known"),
	)
	fresh := join(zero(stackFresh, threadSize), pointer(asm.R2, stackThread), pointer(asm.R3, stackFresh),
		asm.LoadMapPtr(asm.R1, m.threads.FD()), asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call(), findThread(m, "exit"))
	known := join(
		clock(),
		reset(regThread, threadWoken), // it runs
		asm.LoadMem(asm.R1, regThread, threadSince, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "within"),
		asm.JEq.Imm(regNumber, unix.SYS_RECVFROM, "received"),
		asm.JEq.Imm(regNumber, unix.SYS_RECVMSG, "received"),
		asm.Ja.Label("exit"),
	)
	received := join(
		asm.LoadMem(asm.R1, regContext, 8, asm.DWord), // return value
		asm.JSLE.Imm(asm.R1, 0, "exit"),
		asm.StoreMem(regThread, threadSince, regNow, asm.DWord),
		reset(regThread, threadCall),
		asm.Ja.Label("exit"),
	)
	within := join(
		asm.LoadMem(asm.R1, regThread, threadCall, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "exit"),
		asm.Sub.Reg(regNow, asm.R1),
		asm.LoadMem(asm.R1, regThread, threadQueued, asm.DWord),
		asm.Sub.Reg(regNow, asm.R1), // from here on a duration
		reset(regThread, threadCall),
	)
	var kindCode asm.Instructions
	for i, k := range kinds {
		label := string(rune('a' + i))
		for _, call := range k.calls {
			within = append(within, asm.JEq.Imm(regNumber, call, label))
		}
		kindCode = append(kindCode, labelled(label, join(findTotals(m), add(k.sum, regNow), asm.Ja.Label("exit")))...)
	}
	within = append(within, asm.Ja.Label("exit"))
	return join(code, labelled("fresh", fresh), labelled("known", known), labelled("received", received), labelled("within", within), kindCode, end())
}

// schedWakeup: a thread became runnable.
func schedWakeup(m maps, pid int32) asm.Instructions {
	return join(
		asm.Mov.Reg(regContext, asm.R1),
		numberOf(0, pid),
		findThread(m, "exit"),
		clock(),
		asm.LoadMem(asm.R1, regThread, threadWoken, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "exit"),
		asm.StoreMem(regThread, threadWoken, regNow, asm.DWord),
		end(),
	)
}

// schedSwitch: one thread leaves a processor, and another starts to run on it.
func schedSwitch(m maps, pid int32) asm.Instructions {
	leaves := join(
		asm.Mov.Reg(regContext, asm.R1),
		clock(),
		numberOf(8, pid),
		findThread(m, "next"),
		reset(regThread, threadWoken),
		asm.LoadMem(asm.R1, regContext, 0, asm.DWord), // preempted
		asm.JNE.Imm(asm.R1, 0, "still"),
		asm.LoadMem(asm.R1, regContext, 24, asm.DWord), // its state: 0 is runnable
		asm.JNE.Imm(asm.R1, 0, "next"),
		asm.StoreMem(regThread, threadWoken, regNow, asm.DWord).WithSymbol("still"),
	)
	begins := join(
		numberOf(16, pid),
		findThread(m, "exit"),
		asm.LoadMem(asm.R1, regThread, threadWoken, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "exit"),
		reset(regThread, threadWoken),
		asm.Sub.Reg(regNow, asm.R1), // how long it waited
		asm.LoadMem(asm.R1, regThread, threadSince, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "before"),
		asm.LoadMem(asm.R1, regThread, threadCall, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "running"),
		asm.LoadMem(asm.R1, regThread, threadQueued, asm.DWord),
		asm.Add.Reg(asm.R1, regNow),
		asm.StoreMem(regThread, threadQueued, asm.R1, asm.DWord),
	)
	return join(
		leaves, labelled("next", begins),
		labelled("running", join(findTotals(m), add(sumRunQueue, regNow), asm.Ja.Label("exit"))),
		labelled("before", join(findTotals(m), add(sumBefore, regNow))),
		end(),
	)
}

// join concatenates instructions and pieces.
func join(parts ...any) asm.Instructions {
	var out asm.Instructions
	for _, p := range parts {
		switch p := p.(type) {
		case asm.Instruction:
			out = append(out, p)
		case asm.Instructions:
			out = append(out, p...)
		}
	}
	return out
}

// labelled names the first instruction of a piece.
func labelled(name string, code asm.Instructions) asm.Instructions {
	code[0] = code[0].WithSymbol(name)
	return code
}

func end() asm.Instructions {
	return join(asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"), asm.Return())
}

// begin keeps the context, and continues only if the current process is watched.
func begin(m maps) asm.Instructions {
	return join(
		asm.Mov.Reg(regContext, asm.R1),
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.RFP, stackThread, asm.R0, asm.Word),
		asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.RFP, stackProcess, asm.R0, asm.Word),
		pointer(asm.R2, stackProcess),
		asm.LoadMapPtr(asm.R1, m.targets.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
	)
}

// findThread looks up the value of the thread whose ID is on the stack.
func findThread(m maps, otherwise string) asm.Instructions {
	return join(
		pointer(asm.R2, stackThread),
		asm.LoadMapPtr(asm.R1, m.threads.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, otherwise),
		asm.Mov.Reg(regThread, asm.R0),
	)
}

// findTotals leaves a pointer to this processor's sums in R0.
func findTotals(m maps) asm.Instructions {
	return join(
		asm.StoreImm(asm.RFP, stackZero, 0, asm.Word),
		pointer(asm.R2, stackZero),
		asm.LoadMapPtr(asm.R1, m.totals.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
	)
}

// reset writes a zero through R5, which is used for nothing else.
func reset(at asm.Register, offset int16) asm.Instructions {
	return join(asm.Mov.Imm(asm.R5, 0), asm.StoreMem(at, offset, asm.R5, asm.DWord))
}

// add adds a register to one of the sums that R0 points to. No other processor adds to them.
func add(sum int, value asm.Register) asm.Instructions {
	at := int16(8 * sum)
	return join(
		asm.LoadMem(asm.R2, asm.R0, at, asm.DWord),
		asm.Add.Reg(asm.R2, value),
		asm.StoreMem(asm.R0, at, asm.R2, asm.DWord),
	)
}

func clock() asm.Instructions {
	return join(asm.FnKtimeGetNs.Call(), asm.Mov.Reg(regNow, asm.R0))
}

// numberOf puts the ID of the thread that an argument points to on the stack.
func numberOf(argument int16, pid int32) asm.Instructions {
	return join(
		asm.LoadMem(asm.R3, regContext, argument, asm.DWord),
		asm.Add.Imm(asm.R3, pid),
		readKernel(stackThread, 4),
	)
}

// readKernel copies from kernel memory at R3 to the stack.
func readKernel(to int16, size int32) asm.Instructions {
	return join(pointer(asm.R1, to), asm.Mov.Imm(asm.R2, size), asm.FnProbeReadKernel.Call())
}

func pointer(r asm.Register, at int16) asm.Instructions {
	return join(asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, int32(at)))
}

func zero(at, size int16) asm.Instructions {
	var out asm.Instructions
	for i := int16(0); i < size; i += 8 {
		out = append(out, reset(asm.RFP, at+i)...)
	}
	return out
}
