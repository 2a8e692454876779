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

// A backup that is being written is locked by a run: the file run-0001.json, made
// only if absent. A resumed backup takes the next number, which, again, exactly
// one can make; so a lock is never deleted to be taken over, and a run that lost
// its lock sees a higher number than its own.
const (
	// runRenewal is how often a run writes its time anew.
	runRenewal = 30 * time.Second

	// runPatience is how long a run of another machine counts as alive after it
	// was last renewed.
	runPatience = 5 * time.Minute

	// runLease is how long a run writes on after it was last renewed: it ends before
	// another may take its backup over.
	runLease = 4 * time.Minute

	maxRunFile = 64 << 10
)

// ErrLocked says that another process writes the same backup.
var ErrLocked = errors.New("another process writes this backup")

// errLapsed says that a lock could not be renewed in time.
type errLapsed struct {
	place string
	ran   time.Duration // since the last renewal
	shown time.Duration // the same by the clock on the wall
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

// Is has what there is be treated as what belongs to the run that took over: it may.
func (errLapsed) Is(target error) bool { return target == ErrLocked }

// run is the content of a lock.
type run struct {
	Token string `json:"token"`

	// Machine, PID and Start tell at once whether a process of this machine is
	// still there. Machine is the kernel's boot id and PID namespace, both
	// random: no name of a host.
	Machine string `json:"machine"`
	PID     int    `json:"pid"`
	Start   string `json:"start"`

	// Begun is when the backup's first run began; Ended is set by a run that gave
	// up in an orderly way.
	Begun   time.Time `json:"begun"`
	Renewed time.Time `json:"renewed"`
	Ended   time.Time `json:"ended,omitzero"`

	Label      string      `json:"label"`
	Encryption *Encryption `json:"encryption,omitempty"`
	HideNames  bool        `json:"hide_names,omitempty"`
}

// newRun describes this process.
func newRun(now time.Time, label string, e *Encryption, hide bool) run {
	pid := os.Getpid()
	start, _ := processStart(pid)
	return run{
		Token: rand.Text(), Machine: machine(), PID: pid, Start: start, Begun: now, Renewed: now,
		Label: label, Encryption: e, HideNames: hide,
	}
}

// alive reports whether the process behind a lock still works, as far as can be
// told: exactly on the same machine, by the time of the last renewal elsewhere.
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

// machine identifies the running kernel and the namespace in which PIDs count.
// It is empty where the system does not tell.
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

// processStart returns when a process started, in the kernel's ticks, and
// whether it is there at all: a PID alone may be another's by now.
func processStart(pid int) (string, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// The second field is the program's name in parentheses, and may hold any.
	_, rest, found := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 || fields[0] == "Z" {
		return "", false
	}
	return fields[19], true
}

// runName is the lock of the n-th run of the backup below dir.
func runName(dir string, n int) string { return fmt.Sprintf("%s%s%04d.json", dir, runPrefix, n) }

// lastRun finds the newest run of the backup below dir; number 0 means none.
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
		// Nothing of a torn lock can be trusted but its number and its age.
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

	// gone ends with ErrLocked as its cause when another run has taken over.
	gone context.Context
	lose context.CancelCauseFunc

	mu      sync.Mutex
	checked time.Time // when nobody had taken over, by the clock on the wall

	renewed atomic.Pointer[time.Time] // when the file was about to be written
}

// takeLock makes the lock of the number-th run. It returns ErrExist when somebody
// else has it.
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
	if elapsed(begun) >= runRenewal { // the storage has taken it late
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

// elapsed is the time since t by the clock that says more: one stands while the machine is
// suspended, and the other may be set back.
func elapsed(t time.Time) time.Duration { return max(time.Since(t), time.Since(t.Round(0))) }

// lease is how much longer the lock is certainly nobody else's.
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

// renew runs until the lock is released or lost, and renews it at each tick.
func (l *lock) renew(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		// The clock on the wall may have been set, or the machine suspended: then what is there tells.
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
		} // else the storage is away for a moment
	}
}

// write renews the lock.
func (l *lock) write(ctx context.Context, now time.Time) error {
	r := l.run
	r.Renewed = now
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return l.storage.Put(ctx, runName(l.dir, l.number), data)
}

// while returns a context that ends when the lock is lost, too.
func (l *lock) while(ctx context.Context) (context.Context, func()) {
	held, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.gone, func() { end(context.Cause(l.gone)) })
	return held, func() {
		stop()
		end(nil)
	}
}

// why is the reason for which the lock was lost, if it was: that has ended what was being
// done, and err says no more than that it has ended.
func (l *lock) why(err error) error {
	if l != nil && err != nil && l.gone.Err() != nil {
		return context.Cause(l.gone)
	}
	return err
}

// held returns ErrLocked when another run is known to have taken over. It looks where
// the last look is so long ago that one may have: a process that was stopped for a
// while writes no more when it goes on.
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

// check returns ErrLocked when another run has taken over. Its lock is there, or, if
// it has finished the backup, this one's is there no more.
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

// end notes that the lock is lost.
func (l *lock) end() error {
	l.lose(fmt.Errorf("keep lock of %s: %w: it took over because this one seemed dead", strings.TrimSuffix(l.dir, "/"), ErrLocked))
	return context.Cause(l.gone)
}

// release ends the renewal and leaves the lock as that of a run that has ended.
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
