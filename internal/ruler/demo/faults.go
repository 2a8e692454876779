package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/admin"
)

// fault is something that can be done to the stack.
type fault struct {
	path, label string
	do          func(s *stack, ctx context.Context) error
}

var troubles = []fault{
	{"kill/relay", "Kill a relay", (*stack).killRelay},
	{"kill/replica", "Kill a replica of weir kv", (*stack).killReplica},
	{"kill/proxy", "Kill a proxy", (*stack).killProxy},
	{"backup", "Back up, restore, compare", (*stack).backUp},
	{"kill/primary", "Kill the primary", (*stack).killPrimary},
}

var errUnderWay = errors.New("another action is in progress: wait until it has ended")

// inject does one thing at a time, and waits until the stack works again.
func (s *stack) inject(ctx context.Context, t fault) error {
	s.mu.Lock()
	busy := s.under
	s.under = true
	s.mu.Unlock()
	if busy {
		return errUnderWay
	}
	defer func() {
		s.mu.Lock()
		s.under = false
		s.mu.Unlock()
	}()
	if err := t.do(s, ctx); err != nil {
		return err
	}
	return s.progress(ctx)
}

// progress waits until orders, events and the counter advance.
func (s *stack) progress(ctx context.Context) error {
	from := s.ledger.counts()
	began := time.Now()
	err := await(ctx, "the shop works again", func() error {
		c := s.ledger.counts()
		if c.acked > from.acked && c.seen > from.seen && c.increments > from.increments {
			return nil
		}
		return fmt.Errorf("%d orders, %d events, %d increments since", c.acked-from.acked, c.seen-from.seen, c.increments-from.increments)
	})
	if err == nil {
		s.say("orders, events and the counter advance again, after %v", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// restart kills a process and restarts it after a while.
func (s *stack) restart(ctx context.Context, p *process) error {
	pid, _ := p.running()
	s.say("kill -9 %s (process %d)", p.name, pid)
	p.end(syscall.SIGKILL)
	pause(ctx, time.Second) // the other one works alone meanwhile
	if err := p.start(); err != nil {
		return err
	}
	if err := p.ready(ctx); err != nil {
		return err
	}
	s.say("%s is back", p.name)
	return nil
}

func (s *stack) killRelay(ctx context.Context) error {
	return s.restart(ctx, s.relays[rand.IntN(len(s.relays))])
}

func (s *stack) killProxy(ctx context.Context) error {
	return s.restart(ctx, s.proxies[rand.IntN(len(s.proxies))])
}

func (s *stack) killReplica(ctx context.Context) error {
	nodes := s.kv.Nodes()
	n := nodes[rand.IntN(len(nodes))]
	s.say("kill -9 replica %d of weir kv (process %d)", n.Number(), n.PID())
	n.Kill()
	pause(ctx, time.Second)
	if err := n.Restart(ctx); err != nil {
		return fmt.Errorf("start replica %d again: %w", n.Number(), err)
	}
	s.say("replica %d is back", n.Number())
	return nil
}

// killPrimary kills the primary, promotes the standby as a cluster manager would, and creates a
// new standby in its place.
func (s *stack) killPrimary(ctx context.Context) error {
	s.pg.Lock()
	defer s.pg.Unlock()
	old, next := s.primary.Load(), s.standby.Load()
	if next == nil {
		return errors.New("there is no standby that has caught up")
	}
	s.say("kill -9 the primary (%s)", old.Addr())
	s.standby.Store(nil)
	old.Kill()
	<-old.Done()
	if err := s.execute(ctx, next, "postgres", "SELECT pg_promote(true, 60)"); err != nil {
		s.standby.Store(next) // so that it is stopped
		return fmt.Errorf("promote the standby: %w", err)
	}
	s.primary.Store(next)
	s.say("the standby is promoted (%s)", next.Addr())
	if err := old.Stop(ctx); err != nil {
		return err
	}
	if err := s.progress(ctx); err != nil {
		return err
	}
	if err := s.follow(ctx, old.Port()); err != nil {
		return fmt.Errorf("make a new standby: %w", err)
	}
	s.say("a new standby has caught up (%s)", old.Addr())
	return nil
}

// run runs a verb of weir and waits for its end.
func (s *stack) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.cfg.Binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// backUp takes a backup under load, restores it next to the shop and compares: the archive's
// checksum of every table must match the copy's, and everything acknowledged before the backup
// began must be in it.
func (s *stack) backUp(ctx context.Context) (err error) {
	s.pg.Lock()
	defer s.pg.Unlock()
	before := s.ledger.snapshot()
	place := filepath.Join(s.cfg.Out, fmt.Sprintf("backup-%d", time.Now().UnixMilli()))
	s.say("weir backup, under load")
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.backup, s.failed = err.Error(), true
		}
	}()
	if out, err := s.run(ctx, "backup", shopDSN(s.leader.addr(), database), "--to", place, "--progress", "none"); err != nil {
		return fmt.Errorf("weir backup: %w\n%s", err, out)
	}
	const copied = "shop_copy"
	if err := s.execute(ctx, s.primary.Load(), "postgres", "DROP DATABASE IF EXISTS "+copied); err != nil {
		return err
	}
	if out, err := s.run(ctx, "restore", place, "--to", shopDSN(s.leader.addr(), copied), "--create", "--verify", "--progress", "none"); err != nil {
		return fmt.Errorf("weir restore --verify: %w\n%s", err, out)
	}
	got, err := stored(ctx, shopDSN(s.leader.addr(), copied))
	if err != nil {
		return fmt.Errorf("read the copy: %w", err)
	}
	if n := missing(before, got); n > 0 {
		return fmt.Errorf("%d orders that were acknowledged before the backup are not in the copy", n)
	}
	text := fmt.Sprintf("%d orders restored and compared; none of the %d acknowledged before the backup is missing", len(got), len(before))
	s.mu.Lock()
	s.backup = text
	s.mu.Unlock()
	s.say("%s", text)
	return nil
}

// profile takes a CPU profile of all weir processes at the same time.
func (s *stack) profile(ctx context.Context, d time.Duration) {
	dir := filepath.Join(s.cfg.Out, "profiles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.say("no profiles: %v", err)
		return
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	for name, admin := range s.admins() {
		all.Go(func() {
			path := filepath.Join(dir, name+".pprof")
			err := fetch(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, max(1, int(d.Seconds()))), path)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				s.profiled = append(s.profiled, path)
			} else if ctx.Err() == nil {
				fmt.Fprintf(s.cfg.Stdout, "  no profile of %s: %v\n", name, err)
			}
		})
	}
	all.Wait()
	s.say("profiled %d processes for %v (weir profile, or go tool pprof)", len(s.profiled), d)
}

// admins are the admin addresses of all weir processes, by name.
func (s *stack) admins() map[string]string {
	out := make(map[string]string)
	for _, p := range s.proxies {
		out[p.name] = p.admin
	}
	for _, p := range s.relays {
		out[p.name] = p.admin
	}
	for i, a := range s.kv.AdminAddrs() {
		out[fmt.Sprintf("kv-%d", i+1)] = a
	}
	return out
}

func fetch(ctx context.Context, url, path string) error {
	body, err := admin.Get(ctx, url)
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}
