package torture

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// fleet is the relay processes of a run: always the same number, whichever is
// killed is replaced at once.
type fleet struct {
	command []string // starts a process that runs Worker
	env     []string
	order   WorkerConfig
	logs    io.Writer

	mu     sync.Mutex // guards what follows
	ships  []*relayProcess
	counts WorkerReport // of processes that have ended
	died   []string
}

// ship is one relay process.
type relayProcess struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when it was reaped

	mu     sync.Mutex
	word   WorkerReport
	killed bool
}

// launch starts one more process.
func (f *fleet) launch() error {
	cmd := exec.Command(f.command[0], f.command[1:]...)
	cmd.Env = append(os.Environ(), f.env...)
	cmd.Stderr = f.logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start a relay: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start a relay: %w", err)
	}
	order, err := json.Marshal(f.order)
	if err != nil {
		return fmt.Errorf("start a relay: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a relay: %w", err)
	}
	s := &relayProcess{cmd: cmd, in: in, done: make(chan struct{})}
	go f.readReports(s, out) // ends with the process
	f.mu.Lock()
	f.ships = append(f.ships, s)
	f.mu.Unlock()
	// A process that is dead already is noticed by attend.
	_, _ = in.Write(append(order, '\n'))
	return nil
}

// attend listens to a process until it ends.
func (f *fleet) readReports(s *relayProcess, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var w WorkerReport
		if json.Unmarshal(lines.Bytes(), &w) == nil { // the last line of a killed process may be cut
			s.mu.Lock()
			s.word = w
			s.mu.Unlock()
		}
	}
	err := s.cmd.Wait()
	s.mu.Lock()
	w, killed := s.word, s.killed
	s.mu.Unlock()
	f.mu.Lock()
	f.counts.TakeOvers += w.TakeOvers
	f.counts.Stray += w.Stray
	f.counts.Retries += w.Retries
	f.counts.Outages += w.Outages
	if !killed {
		f.died = append(f.died, fmt.Sprintf("relay %d ended by itself: %v", s.cmd.Process.Pid, err))
	}
	f.mu.Unlock()
	close(s.done)
}

// leading reports whether the process says that it leads, and whether by the log.
func (s *relayProcess) leading() (leads, tails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.word.Leading > 0, s.word.Tailing > 0
}

// pick chooses whom it shall meet: mostly one that leads, as only those have
// something to lose, but sometimes any.
func (f *fleet) pick() (victim *relayProcess, leads, tails bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	order := rand.Perm(len(f.ships))
	if rand.IntN(5) > 0 {
		for _, i := range order {
			if leads, tails := f.ships[i].leading(); leads {
				return f.ships[i], leads, tails
			}
		}
	}
	victim = f.ships[order[0]]
	leads, tails = victim.leading()
	return victim, leads, tails
}

// follower is a relay that leads and follows the log, or nil.
func (f *fleet) follower() *relayProcess {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.ships {
		if _, tails := s.leading(); tails {
			return s
		}
	}
	return nil
}

// kill kills a process and takes it out of the fleet. It returns when the
// process is gone.
func (f *fleet) kill(s *relayProcess) error {
	s.mu.Lock()
	s.killed = true
	s.mu.Unlock()
	f.mu.Lock()
	for i := range f.ships {
		if f.ships[i] == s {
			f.ships = append(f.ships[:i], f.ships[i+1:]...)
			break
		}
	}
	f.mu.Unlock()
	if err := s.cmd.Process.Kill(); err != nil && err != os.ErrProcessDone {
		return fmt.Errorf("kill a relay: %w", err)
	}
	<-s.done
	return nil
}

// stop ends all processes by the end of their input, which is a drain.
func (f *fleet) stop() {
	f.mu.Lock()
	ships := f.ships
	f.ships = nil
	f.mu.Unlock()
	for _, s := range ships {
		s.mu.Lock()
		s.killed = true
		s.mu.Unlock()
		_ = s.in.Close()
	}
	for _, s := range ships {
		<-s.done
	}
}

// ended returns the sums of what the processes that are gone have said, and who
// ended without having been killed.
func (f *fleet) totals() (WorkerReport, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts, f.died
}
