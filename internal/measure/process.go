package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// clockTick is the unit of CPU time in /proc/PID/stat: USER_HZ, which is 100 on
// every architecture that Go supports under Linux. CPU time is therefore read in
// steps of 10 ms, although the kernel accounts it more finely.
const clockTick = 100

// Usage has the kernel's counters for a process, or a tree of processes, since its start. Read
// it before and after and subtract.
type Usage struct {
	UserSeconds   float64 `json:"user_s"`
	SystemSeconds float64 `json:"system_s"`
	// RSSBytes is the current resident memory. For a tree it is the sum of the private memory
	// plus the largest member's shared memory, because the sum of the RSS would count a
	// server's shared buffers once per connection.
	RSSBytes int64 `json:"rss_bytes"`
	// PeakRSSBytes is the largest RSSBytes so far. 0 means unknown, as for a tree.
	PeakRSSBytes int64 `json:"peak_rss_bytes,omitempty"`
	// Voluntary and Involuntary count context switches of all living threads: a thread waited
	// for something, or was preempted.
	Voluntary   int64 `json:"voluntary"`
	Involuntary int64 `json:"involuntary"`
	Threads     int   `json:"threads"`
	Processes   int   `json:"processes"`
	// ReadCalls and WriteCalls count read-like and write-like system calls on files. For
	// sockets, Linux counts only read and write, which Go uses, and not recv and send, which
	// PostgreSQL uses.
	ReadCalls  int64 `json:"read_calls"`
	WriteCalls int64 `json:"write_calls"`
	// CallsKnown is false if the kernel does not permit reading them.
	CallsKnown bool `json:"calls_known"`
}

// CPUSeconds returns the sum of user and system time.
func (u Usage) CPUSeconds() float64 { return u.UserSeconds + u.SystemSeconds }

// Since returns what was used between an earlier reading and u. Counters are differences;
// memory, threads and processes are those of u. A counter that decreased, because a thread or a
// process ended, gives 0.
func (u Usage) Since(earlier Usage) Usage {
	d := u
	d.UserSeconds = max(u.UserSeconds-earlier.UserSeconds, 0)
	d.SystemSeconds = max(u.SystemSeconds-earlier.SystemSeconds, 0)
	d.Voluntary = max(u.Voluntary-earlier.Voluntary, 0)
	d.Involuntary = max(u.Involuntary-earlier.Involuntary, 0)
	d.ReadCalls = max(u.ReadCalls-earlier.ReadCalls, 0)
	d.WriteCalls = max(u.WriteCalls-earlier.WriteCalls, 0)
	d.CallsKnown = u.CallsKnown && earlier.CallsKnown
	return d
}

// Self returns the usage of the calling process. Its context switches include threads that have
// ended, and its CPU time is exact to the microsecond.
func Self() (Usage, error) {
	u, err := Process(os.Getpid())
	if err != nil {
		return Usage{}, err
	}
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return Usage{}, fmt.Errorf("read own usage: %w", err)
	}
	u.UserSeconds = float64(r.Utime.Nano()) / 1e9
	u.SystemSeconds = float64(r.Stime.Nano()) / 1e9
	u.Voluntary, u.Involuntary = r.Nvcsw, r.Nivcsw
	return u, nil
}

// Process returns the usage of one process, without its children. If the process does not
// exist, the error matches fs.ErrNotExist.
func Process(pid int) (Usage, error) { return procFS("/proc").process(pid) }

// Tree returns the usage of a process and all its descendants. It includes the CPU time of
// children that have ended if their parent has waited for them, as a forking server does at
// once; their context switches and calls are lost. It is meant for PostgreSQL, whose backends
// are children of the postmaster.
func Tree(pid int) (Usage, error) { return procFS("/proc").tree(pid) }

// procFS is the mount point of a proc file system.
type procFS string

func (p procFS) process(pid int) (Usage, error) {
	st, err := p.stat(pid)
	if err != nil {
		return Usage{}, err
	}
	m, err := p.member(pid, st)
	if err != nil {
		return Usage{}, err
	}
	return m.usage(), nil
}

// tree reads all members. It repeats that if the root has waited for a child meanwhile, because
// that child's time would be missing or counted twice.
func (p procFS) tree(root int) (Usage, error) {
	const attempts = 3
	var u Usage
	for range attempts {
		before, err := p.stat(root)
		if err != nil {
			return Usage{}, err
		}
		if u, err = p.treeOnce(root); err != nil {
			return Usage{}, err
		}
		after, err := p.stat(root)
		if err != nil {
			return Usage{}, err
		}
		if before.childTicks() == after.childTicks() {
			break
		}
	}
	return u, nil
}

// Pids returns a process and its descendants.
func Pids(root int) ([]int, error) {
	stats, err := procFS("/proc").allStats()
	if err != nil {
		return nil, err
	}
	if _, ok := stats[root]; !ok {
		return nil, fmt.Errorf("read process %d: %w", root, fs.ErrNotExist)
	}
	out := []int{root}
	for i := 0; i < len(out); i++ {
		for pid, st := range stats {
			if st.parent == out[i] {
				out = append(out, pid)
			}
		}
	}
	return out, nil
}

func (p procFS) treeOnce(root int) (Usage, error) {
	stats, err := p.allStats()
	if err != nil {
		return Usage{}, err
	}
	if _, ok := stats[root]; !ok {
		return Usage{}, fmt.Errorf("read process %d: %w", root, fs.ErrNotExist)
	}
	children := make(map[int][]int)
	for pid, st := range stats {
		children[st.parent] = append(children[st.parent], pid)
	}
	var sum Usage
	var sharedMax int64
	queue := []int{root}
	for len(queue) > 0 {
		pid := queue[0]
		queue = append(queue[1:], children[pid]...)
		m, err := p.member(pid, stats[pid])
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // ended since the listing; its parent accounts for it
		}
		if err != nil {
			return Usage{}, err
		}
		u := m.usage()
		sum.UserSeconds += u.UserSeconds + ticks(m.stat.childUser)
		sum.SystemSeconds += u.SystemSeconds + ticks(m.stat.childSystem)
		sum.RSSBytes += m.status.rssAnon
		sharedMax = max(sharedMax, m.status.rss-m.status.rssAnon)
		sum.Voluntary += u.Voluntary
		sum.Involuntary += u.Involuntary
		sum.Threads += u.Threads
		sum.ReadCalls += u.ReadCalls
		sum.WriteCalls += u.WriteCalls
		sum.CallsKnown = u.CallsKnown && (sum.Processes == 0 || sum.CallsKnown)
		sum.Processes++
	}
	sum.RSSBytes += sharedMax
	return sum, nil
}

// member is what is read of one process.
type member struct {
	stat                   procStat
	status                 procStatus
	voluntary, involuntary int64
	io                     procIO
	ioKnown                bool
	ranNs                  int64 // CPU time of the first thread; 0 if not known
}

func (m member) usage() Usage {
	user, system := ticks(m.stat.user), ticks(m.stat.system)
	if m.status.threads == 1 && m.ranNs > 0 {
		// stat counts in ticks of 10 ms, too coarse for one of a thousand server processes.
		// schedstat has the exact sum, for one thread.
		ran, share := float64(m.ranNs)/1e9, 0.5
		if user+system > 0 {
			share = user / (user + system)
		}
		user, system = ran*share, ran*(1-share)
	}
	return Usage{
		UserSeconds:   user,
		SystemSeconds: system,
		RSSBytes:      m.status.rss,
		PeakRSSBytes:  m.status.peak,
		Voluntary:     m.voluntary,
		Involuntary:   m.involuntary,
		Threads:       m.status.threads,
		Processes:     1,
		ReadCalls:     m.io.reads,
		WriteCalls:    m.io.writes,
		CallsKnown:    m.ioKnown,
	}
}

func ticks(n int64) float64 { return float64(n) / clockTick }

func (p procFS) member(pid int, st procStat) (member, error) {
	m := member{stat: st}
	b, err := os.ReadFile(p.path(pid, "status"))
	if err != nil {
		return m, fmt.Errorf("read process %d: %w", pid, err)
	}
	if m.status, err = parseStatus(b); err != nil {
		return m, fmt.Errorf("read status of process %d: %w", pid, err)
	}
	if m.voluntary, m.involuntary, err = p.switches(pid, m.status); err != nil {
		return m, err
	}
	// Optional: not every kernel has it.
	if b, err := os.ReadFile(p.path(pid, "schedstat")); err == nil {
		if _, err := fmt.Sscan(string(b), &m.ranNs); err != nil {
			return m, fmt.Errorf("read schedstat of process %d: %w", pid, err)
		}
	}
	// Optional: readable only for the same user or root.
	if b, err := os.ReadFile(p.path(pid, "io")); err == nil {
		if m.io, err = parseIO(b); err == nil {
			m.ioKnown = true
		}
	}
	return m, nil
}

// switches adds up the threads, because the status of a process has only the context switches
// of its first thread.
func (p procFS) switches(pid int, own procStatus) (voluntary, involuntary int64, err error) {
	if own.threads <= 1 {
		return own.voluntary, own.involuntary, nil
	}
	tasks, err := os.ReadDir(p.path(pid, "task"))
	if err != nil {
		return 0, 0, fmt.Errorf("list threads of process %d: %w", pid, err)
	}
	for _, t := range tasks {
		b, err := os.ReadFile(filepath.Join(p.path(pid, "task"), t.Name(), "status"))
		if err != nil {
			continue // the thread has ended
		}
		s, err := parseStatus(b)
		if err != nil {
			return 0, 0, fmt.Errorf("read status of thread %s: %w", t.Name(), err)
		}
		voluntary += s.voluntary
		involuntary += s.involuntary
	}
	return voluntary, involuntary, nil
}

func (p procFS) stat(pid int) (procStat, error) {
	b, err := os.ReadFile(p.path(pid, "stat"))
	if err != nil {
		return procStat{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	st, err := parseStat(b)
	if err != nil {
		return procStat{}, fmt.Errorf("read stat of process %d: %w", pid, err)
	}
	return st, nil
}

func (p procFS) allStats() (map[int]procStat, error) {
	entries, err := os.ReadDir(string(p))
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	stats := make(map[int]procStat)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := p.stat(pid); err == nil {
			stats[pid] = st
		}
	}
	return stats, nil
}

func (p procFS) path(pid int, file string) string {
	return filepath.Join(string(p), strconv.Itoa(pid), file)
}
