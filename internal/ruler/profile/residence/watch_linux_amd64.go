package residence

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// Watch is a watch that runs. Its methods are safe for concurrent use.
type Watch struct {
	maps     maps
	programs []*ebpf.Program
	links    []link.Link
}

// maps are what the programs and this process share.
type maps struct {
	// targets has a key for each process that is watched.
	targets *ebpf.Map
	// threads holds what a thread is doing, by its number.
	threads *ebpf.Map
	// totals has one value for each processor.
	totals *ebpf.Map
}

const (
	maxTargets = 1 << 14
	maxThreads = 1 << 15
)

// Start begins to watch the processes of the given numbers, all their threads.
func Start(processes []int) (_ *Watch, err error) {
	w := &Watch{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	pid, err := pidOffset()
	if err != nil {
		return nil, err
	}
	if err := w.makeMaps(); err != nil {
		return nil, err
	}
	if err := w.Add(processes); err != nil {
		return nil, err
	}
	for _, p := range programs(w.maps, pid) {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "weir_" + p.tracepoint, Type: ebpf.RawTracepoint, Instructions: p.code, License: "GPL",
		})
		if err != nil {
			return nil, fmt.Errorf("load program for %s: %w", p.tracepoint, err)
		}
		w.programs = append(w.programs, program)
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: p.tracepoint, Program: program})
		if err != nil {
			return nil, fmt.Errorf("attach program to %s: %w", p.tracepoint, err)
		}
		w.links = append(w.links, l)
	}
	return w, nil
}

// pidOffset asks the kernel's own description where a thread's number is.
func pidOffset() (int32, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, fmt.Errorf("read the kernel's types: %w", err)
	}
	var task *btf.Struct
	if err := spec.TypeByName("task_struct", &task); err != nil {
		return 0, fmt.Errorf("read the kernel's types: %w", err)
	}
	for _, m := range task.Members {
		if m.Name == "pid" {
			return int32(m.Offset.Bytes()), nil
		}
	}
	return 0, errors.New("read the kernel's types: a task has no number")
}

func (w *Watch) makeMaps() error {
	for _, m := range []struct {
		into *(*ebpf.Map)
		spec ebpf.MapSpec
	}{
		{&w.maps.targets, ebpf.MapSpec{Name: "weir_targets", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: maxTargets}},
		{&w.maps.threads, ebpf.MapSpec{Name: "weir_threads", Type: ebpf.LRUHash, KeySize: 4, ValueSize: threadSize, MaxEntries: maxThreads}},
		{&w.maps.totals, ebpf.MapSpec{Name: "weir_totals", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8 * sums, MaxEntries: 1}},
	} {
		made, err := ebpf.NewMap(&m.spec)
		if err != nil {
			return fmt.Errorf("make map %s: %w", m.spec.Name, err)
		}
		*m.into = made
	}
	return nil
}

// Add watches more processes.
func (w *Watch) Add(processes []int) error {
	for _, p := range processes {
		if err := w.maps.targets.Put(uint32(p), uint32(1)); err != nil {
			return fmt.Errorf("watch process %d: %w", p, err)
		}
	}
	return nil
}

// Read returns the totals until now.
func (w *Watch) Read() (Totals, error) {
	var processors [][sums]int64
	if err := w.maps.totals.Lookup(uint32(0), &processors); err != nil {
		return Totals{}, fmt.Errorf("read totals: %w", err)
	}
	var s [sums]int64
	for _, p := range processors {
		for i, v := range p {
			s[i] += v
		}
	}
	return Totals{
		Requests: s[sumRequests], Before: s[sumBefore], Residence: s[sumResidence], Flush: s[sumFlush], Write: s[sumWrite],
		Read: s[sumRead], Lock: s[sumLock], Wait: s[sumWait], RunQueue: s[sumRunQueue],
	}, nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}
	for _, p := range w.programs {
		errs = append(errs, p.Close())
	}
	for _, m := range []*ebpf.Map{w.maps.targets, w.maps.threads, w.maps.totals} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
