package core_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/core"
)

// TestGates: what a command makes of the states of databases, one after another.
func TestGates(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, step := range []struct {
		command, refused string
		a, b             core.Gate // of two databases afterwards
	}{
		{"PAUSE a", "", core.Gate{Paused: true}, core.Gate{}},
		{"pause a;", `database "a" is paused already`, core.Gate{Paused: true}, core.Gate{}},
		{"DISABLE a", "", core.Gate{Paused: true, Disabled: true}, core.Gate{}},
		{"DISABLE a", `database "a" is disabled already`, core.Gate{Paused: true, Disabled: true}, core.Gate{}},
		{"PAUSE", "", core.Gate{Paused: true, Disabled: true}, core.Gate{Paused: true}},
		{"PAUSE b", `database "b" is paused already`, core.Gate{Paused: true, Disabled: true}, core.Gate{Paused: true}},
		{"RESUME b", "all databases are paused", core.Gate{Paused: true, Disabled: true}, core.Gate{Paused: true}},
		{"RESUME", "", core.Gate{Disabled: true}, core.Gate{}},
		{"RESUME", "weir is not paused", core.Gate{Disabled: true}, core.Gate{}},
		{`ENABLE "a"`, "", core.Gate{}, core.Gate{}},
		{"KILL b", "", core.Gate{}, core.Gate{Paused: true}},
		{"RESUME b", "", core.Gate{}, core.Gate{}},
		{"RESUME b", `database "b" is not paused`, core.Gate{}, core.Gate{}},
	} {
		_, err := s.Command(t.Context(), step.command)
		var no *core.Refusal
		switch {
		case step.refused == "" && err != nil:
			t.Errorf("%s: %v", step.command, err)
		case step.refused != "" && (!errors.As(err, &no) || !strings.Contains(no.Message, step.refused)):
			t.Errorf("%s: %v, want %q", step.command, err, step.refused)
		}
		if a, b := s.GateOf("a"), s.GateOf("b"); a != step.a || b != step.b {
			t.Errorf("after %s: %+v and %+v, want %+v and %+v", step.command, a, b, step.a, step.b)
		}
	}
}

// TestCommandsReachPools: a command for another database leaves a pool alone, and the
// wait of PAUSE ends when its client does not wait any more.
func TestCommandsReachPools(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := &fakePool{backends: 1}
	l := s.Loops[0]
	on(t, l, func() {
		l.Add("d", p, s.GateOf("d"))
		l.Clients[1] = &fakeClient{l: l, id: 1}
		s.Register(l, func() uint32 { return 1 })
	})
	for _, command := range []string{"PAUSE other", "RECONNECT other", "KILL another", "WAIT_CLOSE"} {
		if _, err := s.Command(t.Context(), command); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	on(t, l, func() {
		if p.paused || p.retired || len(l.Clients) != 1 {
			t.Errorf("commands for other databases: %+v, %d clients", p, len(l.Clients))
		}
	})
	ctx, hangUp := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.Command(ctx, "PAUSE d")
		ended <- err
	}()
	for paused := false; !paused; {
		on(t, l, func() { paused = p.paused })
	}
	hangUp()
	if err := <-ended; err == nil {
		t.Error("PAUSE returned with a connection open")
	}
	if !s.GateOf("d").Paused {
		t.Error("that the client hung up resumed the database")
	}
	if ok, err := s.Admit(ctx, "d"); err == nil || !ok {
		t.Errorf("a login to a paused database that gives up: %v, %v", ok, err)
	}
	if _, err := s.Command(t.Context(), "RESUME"); err != nil {
		t.Error(err)
	}
	if ok, err := s.Admit(t.Context(), "d"); err != nil || !ok {
		t.Errorf("a login after RESUME: %v, %v", ok, err)
	}
	if _, err := s.Command(t.Context(), "KILL_CLIENT 1"); err != nil {
		t.Error(err)
	}
	on(t, l, func() {
		if len(l.Clients) != 0 {
			t.Error("the client was not ended")
		}
	})
	fresh := new(fakePool)
	if _, err := s.Command(t.Context(), "PAUSE later"); err != nil {
		t.Error(err)
	}
	on(t, l, func() {
		l.Add("later", fresh, s.GateOf("later"))
		if !fresh.paused {
			t.Error("a pool that is made for a paused database is not")
		}
	})
}

// TestResumeRightAfterPause: RESUME comes while PAUSE is on its way to the loops.
func TestResumeRightAfterPause(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := &fakePool{backends: 1}
	l := s.Loops[0]
	on(t, l, func() { l.Add("d", p, s.GateOf("d")) })
	for range 500 {
		ended := make(chan error, 1)
		go func() {
			_, err := s.Command(t.Context(), "PAUSE d")
			ended <- err
		}()
		for !s.GateOf("d").Paused {
			runtime.Gosched()
		}
		if _, err := s.Command(t.Context(), "RESUME d"); err != nil {
			t.Fatal(err)
		}
		var no *core.Refusal
		if err := <-ended; !errors.As(err, &no) {
			t.Fatalf("PAUSE that was resumed: %v", err)
		}
		paused := false
		on(t, l, func() { paused = p.paused })
		if paused {
			t.Fatal("the pool is paused, and its database is not")
		}
	}
}
