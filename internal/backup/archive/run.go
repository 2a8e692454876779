package archive

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A backup that is being written is locked by a run: the file run-0001.json, which is created
// only if it does not exist. A resumed backup takes the next number, which, again, only one
// process can create. So no lock has to be deleted to take a backup over, and a run that has
// lost its lock sees a number higher than its own.
const (
	// runRenewal is how often a run renews its lock.
	runRenewal = 30 * time.Second

	// runPatience is how long a run on another machine counts as alive after its last renewal.
	runPatience = 5 * time.Minute

	// runLease is how long a run continues to write after its last renewal: it stops before
	// another may take over its backup.
	runLease = 4 * time.Minute

	maxRunFile = 64 << 10
)

// ErrLocked says that another process writes the same backup.
var ErrLocked = errors.New("another process writes this backup")

// errLapsed says that a lock could not be renewed in time.
type errLapsed struct {
	place string
	ran   time.Duration // since the last renewal, by the monotonic clock
	shown time.Duration // the same by the wall clock, if that is more
	err   error         // of the next renewal
}

func (e errLapsed) Error() string {
	why := fmt.Sprintf("the storage has taken no renewal for %s", runLease)
	if e.ran < runLease {
		why = fmt.Sprintf("this machine's clock was set forward, or the machine slept: since the last renewal %s have passed by the clock, weir ran for %s, and the next renewal failed",
			e.shown.Round(time.Second), e.ran.Round(time.Second))
	}
	return fmt.Sprintf("keep lock of %s: %s (%v), so that another machine may take the backup over: run it again when the storage is back", e.place, why, e.err)
}

// Is makes errLapsed match ErrLocked: the backup may belong to another run by now, and must be
// left alone.
func (errLapsed) Is(target error) bool { return target == ErrLocked }

// A run is the content of a lock.
type run struct {
	Token string `json:"token"`

	// Machine, PID and Start identify a process of this machine, so that its end is noticed at
	// once. Machine is the kernel's boot id and PID namespace, both random: it names no host.
	Machine string `json:"machine"`
	PID     int    `json:"pid"`
	Start   string `json:"start"`

	// Begun is when the backup's first run began; Ended is set by a run that stopped in an
	// orderly way.
	Begun   time.Time `json:"begun"`
	Renewed time.Time `json:"renewed"`
	Ended   time.Time `json:"ended,omitzero"`

	Label      string      `json:"label"`
	Encryption *Encryption `json:"encryption,omitempty"`
	HideNames  bool        `json:"hide_names,omitempty"`
}

// newRun returns the run of this process.
func newRun(now time.Time, label string, e *Encryption, hide bool) run {
	pid := os.Getpid()
	start, _ := processStart(pid)
	return run{
		Token: rand.Text(), Machine: machine(), PID: pid, Start: start, Begun: now, Renewed: now,
		Label: label, Encryption: e, HideNames: hide,
	}
}

// alive reports whether the process that holds a lock is running: on the same machine exactly,
// on another by the time of the last renewal.
func (r run) alive(now time.Time) bool {
	if !r.Ended.IsZero() {
		return false
	}
	if m := machine(); m != "" && r.Machine == m {
		start, there := processStart(r.PID)
		return there && start == r.Start
	}
	return now.Sub(r.Renewed) < runPatience
}

// machine identifies the running kernel and the PID namespace. It is empty if the system does
// not provide them.
func machine() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + space
}

// processStart returns when a process started, in the kernel's ticks, and whether it exists. A
// PID alone is not enough, because it may have been reused.
func processStart(pid int) (string, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// The second field is the program's name in parentheses, and may contain any character.
	_, rest, found := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 || fields[0] == "Z" {
		return "", false
	}
	return fields[19], true
}

// runName returns the name of the lock of the n-th run.
func runName(dir string, n int) string { return fmt.Sprintf("%s%s%04d.json", dir, runPrefix, n) }

// lastRun finds the newest run of the backup in dir; number 0 means none.
func lastRun(ctx context.Context, s Storage, dir string) (int, run, error) {
	last := 0
	for o, err := range s.List(ctx, dir, false) {
		if err != nil {
			return 0, run{}, fmt.Errorf("look for runs: %w", err)
		}
		digits, ok := strings.CutPrefix(o.Name, dir+runPrefix)
		digits, json := strings.CutSuffix(digits, ".json")
		if n, err := strconv.Atoi(digits); ok && json && err == nil {
			last = max(last, n)
		}
	}
	if last == 0 {
		return 0, run{}, nil
	}
	data, err := readAll(ctx, s, runName(dir, last), maxRunFile)
	if errors.Is(err, ErrNotExist) {
		return 0, run{}, nil // just finished
	}
	if err != nil {
		return 0, run{}, err
	}
	var r run
	if err := json.Unmarshal(data, &r); err != nil {
		// Of a torn lock, only the number and the age can be trusted.
		info, err := s.Stat(ctx, runName(dir, last))
		if err != nil {
			return 0, run{}, err
		}
		return last, run{Renewed: info.Modified}, nil
	}
	return last, r, nil
}

// A lock is a run of this process. It renews itself until it is released.
type lock struct {
	storage Storage
	dir     string
	number  int
	run     run
	stop    context.CancelFunc
	done    sync.WaitGroup

	// gone is cancelled, with ErrLocked as its cause, when another run has taken over.
	gone context.Context
	lose context.CancelCauseFunc

	mu      sync.Mutex
	checked time.Time // when no other run had taken over, by the wall clock

	renewed atomic.Pointer[time.Time] // when the file was about to be written
}

// takeLock creates the lock of the number-th run. It returns ErrExist if another process has
// it.
func takeLock(ctx context.Context, s Storage, dir string, number int, r run) (*lock, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write lock: %w", err)
	}
	begun := time.Now()
	if err := s.PutNew(ctx, runName(dir, number), data); err != nil {
		return nil, err
	}
	alive, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &lock{storage: s, dir: dir, number: number, run: r, stop: stop, checked: time.Now().Round(0)}
	l.gone, l.lose = context.WithCancelCause(context.Background())
	l.renewed.Store(&begun)
	if elapsed(begun) >= runRenewal { // the storage was slow to write it
		inTime, cancel := context.WithTimeout(ctx, runLease)
		err := l.refresh(inTime)
		cancel()
		if err != nil {
			stop()
			return nil, err
		}
	}
	l.done.Go(func() {
		tick := time.NewTicker(runRenewal)
		defer tick.Stop()
		l.renew(alive, tick.C)
	})
	return l, nil
}

// elapsed returns the time since t by the clock that shows more: the monotonic clock stops
// while the machine is suspended, and the wall clock may be set back.
func elapsed(t time.Time) time.Duration { return max(time.Since(t), time.Since(t.Round(0))) }

// lease returns for how much longer no other run can take the lock over.
func (l *lock) lease() time.Duration {
	return runLease - elapsed(*l.renewed.Load())
}

// refresh renews the lock, unless another run has taken over.
func (l *lock) refresh(ctx context.Context) error {
	begun := time.Now()
	if err := l.check(ctx); err != nil {
		return err
	}
	if err := l.write(ctx, begun); err != nil {
		return err
	}
	l.renewed.Store(&begun)
	return nil
}

// renew renews the lock at each tick, until it is released or lost.
func (l *lock) renew(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		// The wall clock may have been set, or the machine suspended: then the files decide.
		inTime, cancel := context.WithTimeout(ctx, runLease-time.Since(*l.renewed.Load()))
		err := l.refresh(inTime)
		cancel()
		switch {
		case errors.Is(err, ErrLocked) || ctx.Err() != nil:
			return
		case err != nil && l.lease() <= 0:
			last := *l.renewed.Load()
			l.lose(errLapsed{strings.TrimSuffix(l.dir, "/"), time.Since(last), elapsed(last), err})
			return
		} // otherwise the storage is unreachable for a moment
	}
}

// write writes the lock's file.
func (l *lock) write(ctx context.Context, now time.Time) error {
	r := l.run
	r.Renewed = now
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return l.storage.Put(ctx, runName(l.dir, l.number), data)
}

// while returns a context that also ends when the lock is lost.
func (l *lock) while(ctx context.Context) (context.Context, func()) {
	held, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.gone, func() { end(context.Cause(l.gone)) })
	return held, func() {
		stop()
		end(nil)
	}
}

// why returns the reason for which the lock was lost, if it was; otherwise err. After such a
// loss, err says only that its context was cancelled.
func (l *lock) why(err error) error {
	if l != nil && err != nil && l.gone.Err() != nil {
		return context.Cause(l.gone)
	}
	return err
}

// held returns ErrLocked if another run is known to have taken over. It checks the storage if
// the last check is so long ago that one may have: a process that was stopped for a while does
// not write when it continues.
func (l *lock) held(ctx context.Context) error {
	if l.gone.Err() != nil {
		return context.Cause(l.gone)
	}
	l.mu.Lock()
	fresh := time.Now().Round(0).Sub(l.checked) < runPatience/2
	l.mu.Unlock()
	if fresh {
		return nil
	}
	return l.check(ctx)
}

// check returns ErrLocked if another run has taken over: its lock exists, or, if it has
// finished the backup, this run's does not exist any more.
func (l *lock) check(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone.Err() != nil {
		return context.Cause(l.gone)
	}
	_, other := l.storage.Stat(ctx, runName(l.dir, l.number+1))
	if other == nil {
		return l.end()
	}
	if !errors.Is(other, ErrNotExist) {
		return fmt.Errorf("check lock: %w", other)
	}
	switch _, own := l.storage.Stat(ctx, runName(l.dir, l.number)); {
	case errors.Is(own, ErrNotExist):
		return l.end()
	case own != nil:
		return fmt.Errorf("check lock: %w", own)
	}
	l.checked = time.Now().Round(0)
	return nil
}

// end records that the lock is lost.
func (l *lock) end() error {
	l.lose(fmt.Errorf("keep lock of %s: %w: it took over because this one seemed dead", strings.TrimSuffix(l.dir, "/"), ErrLocked))
	return context.Cause(l.gone)
}

// release ends the renewal and marks the lock as that of a run that has ended.
func (l *lock) release(ctx context.Context) error {
	l.halt()
	r := l.run
	r.Ended = time.Now()
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	if err := l.storage.Put(ctx, runName(l.dir, l.number), data); err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	return nil
}

// halt ends the renewal.
func (l *lock) halt() {
	l.stop()
	l.done.Wait()
}

func sortedNames(names []string) []string {
	slices.Sort(names)
	return names
}
