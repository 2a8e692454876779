package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A fleet plays the hosts.
type fleet struct {
	mu    sync.Mutex
	roles map[string]Role // by address; none: connection refused
	terms map[string]uint64
	data  map[string]uint64
	hung  map[string]bool
	names map[string][]string
	moves []string
}

func (f *fleet) set(address string, r Role) { f.mu.Lock(); f.roles[address] = r; f.mu.Unlock() }
func (f *fleet) hang(address string, yes bool) {
	f.mu.Lock()
	f.hung[address] = yes
	f.mu.Unlock()
}

// promote makes an address a primary's, in a term.
func (f *fleet) promote(address string, term uint64) {
	f.mu.Lock()
	f.roles[address], f.terms[address] = RolePrimary, term
	f.mu.Unlock()
}

func (f *fleet) reach(address string, position uint64) {
	f.mu.Lock()
	f.data[address] = position
	f.mu.Unlock()
}

func (f *fleet) remove(address string) { f.mu.Lock(); delete(f.roles, address); f.mu.Unlock() }
func (f *fleet) name(name string, addresses ...string) {
	f.mu.Lock()
	f.names[name] = addresses
	f.mu.Unlock()
}

func (f *fleet) moved() []string { f.mu.Lock(); defer f.mu.Unlock(); return slices.Clone(f.moves) }

func (f *fleet) probe(ctx context.Context, e Endpoint) (Report, error) {
	f.mu.Lock()
	r, up := f.roles[e.Address]
	term, position := f.terms[e.Address], f.data[e.Address]
	hung := f.hung[e.Address]
	f.mu.Unlock()
	if hung {
		<-ctx.Done()
		return Report{}, context.Cause(ctx)
	}
	if !up {
		return Report{}, errors.New("connection refused")
	}
	return Report{Role: r, Term: term, Position: position}, nil
}

func (f *fleet) lookup(_ context.Context, name string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.names[name]; len(a) > 0 {
		return slices.Clone(a), nil
	}
	return nil, errors.New("no such host")
}

// watch runs a monitor over a fleet within a bubble of synctest.
func watch(t *testing.T, cfg Config) (*Monitor, *fleet) {
	t.Helper()
	f := &fleet{roles: map[string]Role{}, terms: map[string]uint64{}, data: map[string]uint64{}, hung: map[string]bool{}, names: map[string][]string{}}
	cfg.Probe, cfg.Lookup, cfg.Log = f.probe, f.lookup, slog.New(slog.DiscardHandler)
	cfg.OnChange = func(old, now Endpoint) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.moves = append(f.moves, old.Address+">"+now.Address)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m, f
}

func run(t *testing.T, m *Monitor) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func current(t *testing.T, m *Monitor) string {
	t.Helper()
	e, err := m.Current(t.Context())
	if err != nil {
		return err.Error()
	}
	return e.Address
}

func TestMonitorFollowsThePrimary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, f := watch(t, Config{Hosts: []string{"10.0.0.1:5", "10.0.0.2:5"}, Target: TargetReadWrite})
		f.set("10.0.0.1:5", RolePrimary)
		f.set("10.0.0.2:5", RoleStandby)
		run(t, m)
		if got := current(t, m); got != "10.0.0.1:5" {
			t.Fatalf("at first %s", got)
		}
		here, cancel := m.While(t.Context(), Endpoint{"10.0.0.1:5", "10.0.0.1:5"})
		defer cancel()
		if err := here.Err(); err != nil {
			t.Errorf("while connections go there: %v", err)
		}
		f.set("10.0.0.1:5", RoleStandby)
		m.Suspect()
		time.Sleep(least + time.Millisecond)
		if got := current(t, m); !strings.Contains(got, "no host serves as read-write") {
			t.Errorf("with no primary: %s", got)
		}
		for _, ctx := range []context.Context{here, func() context.Context {
			late, cancel := m.While(t.Context(), Endpoint{"10.0.0.1:5", "10.0.0.1:5"})
			defer cancel()
			return late
		}()} {
			if err := context.Cause(ctx); !errors.Is(err, ErrNoHost) {
				t.Errorf("after connections have left: %v, want ErrNoHost", err)
			}
		}
		f.set("10.0.0.2:5", RolePrimary)
		time.Sleep(searching + time.Millisecond)
		if got := current(t, m); got != "10.0.0.2:5" {
			t.Errorf("after the promotion: %s", got)
		}
		f.remove("10.0.0.2:5") // restarts
		time.Sleep(3 * time.Second)
		if got := current(t, m); got != "10.0.0.2:5" {
			t.Errorf("while it restarts: %s", got)
		}
		if want := []string{"10.0.0.1:5>", ">10.0.0.2:5"}; !slices.Equal(f.moved(), want) {
			t.Errorf("moves %q, want %q", f.moved(), want)
		}
	})
}

func TestMonitorForgivesOneSlowAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, f := watch(t, Config{Hosts: []string{"10.0.0.1:5", "10.0.0.2:5"}})
		f.set("10.0.0.1:5", RolePrimary)
		f.set("10.0.0.2:5", RolePrimary)
		run(t, m)
		_ = current(t, m)
		f.hang("10.0.0.1:5", true)
		m.Suspect()
		time.Sleep(time.Second) // within a probe
		f.hang("10.0.0.1:5", false)
		time.Sleep(5 * time.Second)
		if len(f.moved()) != 0 {
			t.Errorf("one slow answer: %q", f.moved())
		}
		f.hang("10.0.0.1:5", true)
		time.Sleep(10 * time.Second)
		if len(f.moved()) != 0 {
			t.Errorf("nobody has asked, and yet: %q", f.moved())
		}
		m.Suspect()
		time.Sleep(6 * time.Second)
		if want := []string{"10.0.0.1:5>10.0.0.2:5"}; !slices.Equal(f.moved(), want) {
			t.Errorf("a host that hangs: %q, want %q", f.moved(), want)
		}
	})
}

// A primary that was replaced, and comes back while its successor is away, gets no
// connections until an operator says so.
func TestMonitorGoesBackToNoEarlierTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, f := watch(t, Config{Hosts: []string{"10.0.0.1:5", "10.0.0.2:5"}, Target: TargetReadWrite})
		f.promote("10.0.0.1:5", 3)
		run(t, m)
		_ = current(t, m)
		f.remove("10.0.0.1:5")
		f.promote("10.0.0.2:5", 4)
		time.Sleep(2 * time.Second)
		if got := current(t, m); got != "10.0.0.2:5" {
			t.Fatalf("after the failover %s", got)
		}
		f.remove("10.0.0.2:5") // restarts
		f.promote("10.0.0.1:5", 3)
		time.Sleep(3 * time.Second)
		if got := current(t, m); got != "10.0.0.2:5" {
			t.Errorf("while the primary restarts and the former one is back: %s", got)
		}
		f.set("10.0.0.2:5", RoleStandby)
		time.Sleep(3 * time.Second)
		if got := current(t, m); !strings.Contains(got, "of timeline 3, and one of timeline 4 has been seen") {
			t.Errorf("with only the former primary: %s", got)
		}
		m.Forget()
		time.Sleep(time.Second)
		if got := current(t, m); got != "10.0.0.1:5" {
			t.Errorf("after RECONNECT: %s", got)
		}
	})
}

// A write that was refused has the hosts asked at once, where a primary is wanted.
func TestMonitorAsksWhenAWriteIsRefused(t *testing.T) {
	t.Parallel()
	for _, target := range []Target{TargetReadWrite, TargetPreferStandby} {
		synctest.Test(t, func(t *testing.T) {
			m, f := watch(t, Config{Hosts: []string{"10.0.0.1:5", "10.0.0.2:5"}, Target: target, Interval: time.Hour})
			f.set("10.0.0.1:5", RolePrimary)
			run(t, m)
			_ = current(t, m)
			f.set("10.0.0.1:5", RoleStandby)
			f.set("10.0.0.2:5", RolePrimary)
			m.Refused()
			time.Sleep(least + time.Millisecond)
			if moved := len(f.moved()) > 0; moved != (target == TargetReadWrite) {
				t.Errorf("%s: moved %v", target, moved)
			}
		})
	}
}

// A primary that hangs is not waited for when another one is known to be its successor.
func TestMonitorDoesNotWaitForTheFormerPrimary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, f := watch(t, Config{Hosts: []string{"10.0.0.1:5", "10.0.0.2:5"}, Target: TargetReadWrite})
		f.promote("10.0.0.1:5", 1)
		f.set("10.0.0.2:5", RoleStandby)
		run(t, m)
		_ = current(t, m)
		f.hang("10.0.0.1:5", true)
		f.promote("10.0.0.2:5", 2)
		m.Suspect()
		time.Sleep(least + time.Millisecond)
		if want := []string{"10.0.0.1:5>10.0.0.2:5"}; !slices.Equal(f.moved(), want) {
			t.Errorf("%v later: %q, want %q", least, f.moved(), want)
		}
		f.hang("10.0.0.1:5", false) // and says that it is the primary still
		time.Sleep(5 * time.Second)
		if got := current(t, m); got != "10.0.0.2:5" {
			t.Errorf("when the former primary is back: %s", got)
		}
	})
}

// A host whose probes come too late is not left while it answers others.
func TestMonitorStaysWithAHostThatAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Bool
		m, f := watch(t, Config{
			Hosts: []string{"10.0.0.1:5", "10.0.0.2:5"}, Target: TargetReadWrite,
			Alive: func(context.Context) bool { return answers.Load() },
		})
		f.set("10.0.0.1:5", RolePrimary)
		f.set("10.0.0.2:5", RolePrimary)
		run(t, m)
		_ = current(t, m)
		answers.Store(true)
		f.hang("10.0.0.1:5", true)
		time.Sleep(time.Minute)
		if len(f.moved()) != 0 {
			t.Errorf("it answers others, and yet: %q", f.moved())
		}
		answers.Store(false)
		time.Sleep(5 * time.Second)
		if want := []string{"10.0.0.1:5>10.0.0.2:5"}; !slices.Equal(f.moved(), want) {
			t.Errorf("a host that answers nobody any more: %q, want %q", f.moved(), want)
		}
	})
}

func TestMonitorFollowsNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		m, f := watch(t, Config{Hosts: []string{"db.example:5"}, OnHosts: func(list []Endpoint) {
			for _, e := range list {
				told = append(told, e.Address)
			}
		}})
		f.name("db.example", "10.0.0.1")
		f.set("10.0.0.1:5", RoleUnknown)
		f.set("10.0.0.2:5", RoleUnknown)
		run(t, m)
		if got := current(t, m); got != "10.0.0.1:5" {
			t.Fatalf("at first %s", got)
		}
		f.name("db.example") // the resolver fails: the last address stands
		time.Sleep(3 * time.Second)
		f.name("db.example", "10.0.0.2")
		time.Sleep(3 * time.Second)
		if want := []string{"10.0.0.1:5>10.0.0.2:5"}; !slices.Equal(f.moved(), want) {
			t.Errorf("moves %q, want %q", f.moved(), want)
		}
		if want := []string{"10.0.0.1:5", "10.0.0.2:5"}; !slices.Equal(told, want) {
			t.Errorf("told of %q, want %q", told, want)
		}
		if e, _ := m.Current(t.Context()); e.Host != "db.example:5" {
			t.Errorf("the host is %q: its certificate is made out for the name", e.Host)
		}
	})
}

func TestMonitorWithNothingToChoose(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"/run/.s.PGSQL.5432", "127.0.0.1:5", "[::1]:5", "localhost:5"} {
		m, err := New(Config{Hosts: []string{host}})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := m.Current(t.Context()); err != nil || e.Address != host || !m.Static() {
			t.Errorf("%s: %v, %v, static %v", host, e, err, m.Static())
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a monitor of no hosts was made")
	}
	m, err := New(Config{Hosts: []string{"db.example:5"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Current(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("before the first look: %v", err)
	}
}

const cluster = `{"members": [
 {"name": "a", "role": "replica", "state": "streaming", "host": "10.0.0.1", "port": 5, "timeline": 3, "lag": 0},
 {"name": "b", "role": "leader", "state": "running", "host": "10.0.0.2", "port": 5, "timeline": 3},
 {"name": "c", "role": "replica", "state": "start failed", "host": "10.0.0.3", "port": 5}], "scope": "shop"}`

func TestMonitorAsksPatroni(t *testing.T) {
	t.Parallel()
	answers := true
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers || r.URL.Path != "/cluster" {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(cluster))
	}))
	defer srv.Close()
	dead, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	m, f := watch(t, Config{Hosts: []string{"10.0.0.1:5"}, Target: TargetReadWrite, Patroni: []string{"http://" + dead.Addr().String(), srv.URL + "/"}})
	f.set("10.0.0.1:5", RolePrimary) // it has not been told yet
	f.set("10.0.0.2:5", RolePrimary)
	m.look(t.Context(), true)
	if got := current(t, m); got != "10.0.0.2:5" {
		t.Errorf("Patroni's leader: %s", got)
	}
	if n := len(m.Hosts()); n != 2 {
		t.Errorf("%d hosts, want the two that run", n)
	}
	answers = false
	m.cfg.Timeout = 100 * time.Millisecond // that the silent one is waited for
	m.look(t.Context(), true)
	if got := current(t, m); got != "10.0.0.1:5" {
		t.Errorf("without Patroni: %s", got)
	}
}

func FuzzParseCluster(f *testing.F) {
	f.Add([]byte(cluster))
	f.Add([]byte(`{"members":[{"host":"::1","port":70000}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		members, err := parseCluster(body)
		if (err == nil) == (len(members) == 0) {
			t.Fatalf("%d members and error %v", len(members), err)
		}
		for _, m := range members {
			if _, _, err := net.SplitHostPort(m.host); err != nil {
				t.Fatalf("host %q: %v", m.host, err)
			}
		}
	})
}
