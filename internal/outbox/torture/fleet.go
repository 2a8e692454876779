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

// fleet is the relay processes of a run. Their number is constant: a killed one is replaced at
// once.
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

// relayProcess is one relay process.
type relayProcess struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when it was reaped

	mu     sync.Mutex
	word   WorkerReport
	killed bool
}

// launch starts another process.
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
	// readReports notices a process that is dead already.
	_, _ = in.Write(append(order, '\n'))
	return nil
}

// readReports reads the reports of a process until it ends.
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

// leading reports whether the process leads, and whether it follows the log, according to its last
// report.
func (s *relayProcess) leading() (leads, tails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.word.Leading > 0, s.word.Tailing > 0
}

// pick chooses a victim: mostly a leader, since others have nothing to lose, but sometimes any.
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

// follower returns a relay that leads and follows the log, or nil.
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

// kill kills a process and removes it from the fleet. It returns when the process has ended.
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

// stop makes all processes drain and end, by closing their input.
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

// totals returns the sum of the reports of all ended processes, and those that ended without being
// killed.
func (f *fleet) totals() (WorkerReport, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts, f.died
}
