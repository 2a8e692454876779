package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config lists the hosts and says how to ask them.
type Config struct {
	// Hosts are host:port or paths of Unix sockets, in order of preference. A name
	// may have several addresses, and they may change. Required.
	Hosts []string
	// Target is the role that is wanted. Default: any.
	Target Target
	// Probe asks the host at an endpoint for its role. It should end with its
	// context. Required unless there is nothing to choose; see New.
	Probe func(ctx context.Context, e Endpoint) (Report, error)
	// Patroni are base URLs of Patroni's REST API. All are asked; the first that answers
	// says which hosts there are, and which of them leads. While none answers, Hosts
	// are used.
	Patroni []string
	// Interval is the pause between two rounds of probes. Default: 1 s.
	Interval time.Duration
	// Timeout bounds one probe. Default: 2 s.
	Timeout time.Duration
	// Lookup resolves a host name. Default: the system's resolver.
	Lookup func(ctx context.Context, name string) ([]string, error)
	// Alive reports whether the current host has just answered a statement. Such a host is
	// not left because its probe is late. Default: false.
	Alive func(ctx context.Context) bool
	// OnHosts is called, from Run's goroutine, with the new list of endpoints when it has
	// changed, before the hosts are asked. Idle connections to other endpoints should be
	// closed.
	OnHosts func(list []Endpoint)
	// OnChange is called, from Run's goroutine, when new connections go to another
	// endpoint than before: connections to old must be closed. now has no
	// address while there is no such host.
	OnChange func(old, now Endpoint)
	// Log receives the results. Default: slog.Default().
	Log *slog.Logger
}

// searching is the pause between two rounds while no host serves the target.
const searching = 200 * time.Millisecond

// least is the least pause between two rounds, however often they are requested.
const least = 100 * time.Millisecond

// A Monitor knows where new connections go. Safe for concurrent use.
type Monitor struct {
	cfg    Config
	static bool
	asked  chan struct{} // holds one request for a round

	mu     sync.Mutex
	hosts  []Status      // guarded by mu: of the last round
	now    Endpoint      // guarded by mu
	err    error         // guarded by mu: why there is no endpoint
	left   leaving       // guarded by mu
	term   uint64        // guarded by mu: of the last primary that was chosen
	looked chan struct{} // closed after the first round
	// addresses were the last ones of each name, for when the resolver fails.
	addresses map[string][]string // only Run's goroutine
	probes    sync.WaitGroup
	doubt     string // the last one logged; only Run's goroutine
	alone     bool   // Patroni did not answer last time; only Run's goroutine
	trail     trail  // only Run's goroutine
}

// New returns a monitor; Run makes it probe. With one host, given by address rather than by
// name, and no particular role wanted, there is nothing to probe, and Current works without
// Run.
func New(cfg Config) (*Monitor, error) {
	if len(cfg.Hosts) == 0 {
		return nil, errors.New("no hosts")
	}
	if cfg.Target == "" {
		cfg.Target = TargetAny
	}
	if cfg.Interval <= 0 {
		cfg.Interval = time.Second
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 2 * time.Second
	}
	if cfg.Lookup == nil {
		cfg.Lookup = net.DefaultResolver.LookupHost
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	m := &Monitor{cfg: cfg, asked: make(chan struct{}, 1), left: newLeaving(), looked: make(chan struct{}), addresses: make(map[string][]string)}
	if len(cfg.Hosts) == 1 && cfg.Target == TargetAny && len(cfg.Patroni) == 0 && literal(cfg.Hosts[0]) {
		m.static, m.now = true, Endpoint{cfg.Hosts[0], cfg.Hosts[0]}
		m.hosts = []Status{{Endpoint: m.now}}
		close(m.looked)
	}
	return m, nil
}

// literal reports whether a host has an address that cannot change.
func literal(host string) bool {
	if isSocket(host) {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	return err != nil || net.ParseIP(name) != nil || name == "localhost"
}

func isSocket(host string) bool { return strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") }

// Static reports whether there is nothing to choose.
func (m *Monitor) Static() bool { return m.static }

// Looked reports whether the first round has ended: Current does not wait then.
func (m *Monitor) Looked() bool {
	select {
	case <-m.looked:
		return true
	default:
		return false
	}
}

// Serves reports whether a host in a role serves the target.
func (m *Monitor) Serves(r Role) bool { return r == RoleUnknown || m.cfg.Target.rank(r) > 0 }

// Current returns where new connections go. It waits for the first round of probes.
func (m *Monitor) Current(ctx context.Context) (Endpoint, error) {
	select {
	case <-m.looked:
	case <-ctx.Done():
		return Endpoint{}, fmt.Errorf("find the host: %w", context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.err
}

// Goes reports whether connections go to an endpoint at present.
func (m *Monitor) Goes(e Endpoint) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now == e
}

// While returns a context that ends when connections no longer go to e, so that work does
// not wait for a host that hangs. Its cause is then an ErrNoHost. The caller must call cancel.
func (m *Monitor) While(ctx context.Context, e Endpoint) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	m.mu.Lock()
	now, left := m.now, m.left
	m.mu.Unlock()
	gone := func() { end(fmt.Errorf("%w: connections do not go to %s any more", ErrNoHost, e.Host)) }
	stop := func() bool { return true }
	if now == e {
		stop = context.AfterFunc(left.ctx, gone)
	} else {
		gone()
	}
	return ctx, func() {
		stop()
		end(nil)
	}
}

// leaving ends when connections go elsewhere.
type leaving struct {
	ctx context.Context
	end context.CancelFunc
}

func newLeaving() leaving {
	ctx, end := context.WithCancel(context.Background())
	return leaving{ctx, end}
}

// Hosts returns what is known of each host.
func (m *Monitor) Hosts() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.hosts)
}

// Suspect requests a round soon, because a host could not be connected to.
func (m *Monitor) Suspect() {
	select {
	case m.asked <- struct{}{}:
	default:
	}
}

// Refused requests a round soon if a primary is wanted, because the current host refused a
// write as a read-only server does.
func (m *Monitor) Refused() {
	if m.cfg.Target.wantsPrimary() {
		m.Suspect()
	}
}

// Run probes the hosts until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	if m.static {
		return
	}
	defer m.probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for asked := true; ; {
		began := time.Now()
		m.look(ctx, asked)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(m.pause())
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			asked = false
			continue
		case <-m.asked:
			asked = true
		}
		timer.Reset(max(0, least-time.Since(began)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// pause is the time until the next round if none is requested. It is short while there is no
// current host: no client can connect then, so none requests a round.
func (m *Monitor) pause() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return min(m.cfg.Interval, searching)
	}
	return m.cfg.Interval
}

// due reports whether the hosts must be asked. If any role will do, they are asked only
// when a connection failed, or when the list of hosts has changed: asking every second would
// be useless, and fill the servers' logs if weir has no password.
func (m *Monitor) due(found []Status, asked bool) bool {
	if asked || m.cfg.Target != TargetAny || len(found) != len(m.hosts) {
		return true
	}
	for i := range found {
		if found[i].Endpoint != m.hosts[i].Endpoint || m.hosts[i].Err != nil {
			return true
		}
	}
	return false
}

// tell calls OnHosts if the list of endpoints has changed.
func (m *Monitor) tell(found []Status) {
	same := func(a, b Status) bool { return a.Endpoint == b.Endpoint }
	if m.cfg.OnHosts == nil || slices.EqualFunc(found, m.hosts, same) { // only this goroutine changes m.hosts
		return
	}
	list := make([]Endpoint, len(found))
	for i := range found {
		list[i] = found[i].Endpoint
	}
	m.cfg.OnHosts(list)
}

// look asks every host for its role, if that is due or requested, and changes the current
// host if another one serves the target.
func (m *Monitor) look(ctx context.Context, asked bool) {
	found, patroni := m.members(ctx)
	if !m.due(found, asked) { // only this goroutine changes m.hosts
		return
	}
	m.tell(found)
	if len(found) > 1 || m.cfg.Target != TargetAny { // else there is nothing to choose: whether it answers is seen by those who connect
		m.probe(ctx, found, patroni)
	}
	if ctx.Err() != nil {
		return // the probes failed for that
	}
	if again := m.forgive(ctx, found); again {
		m.Suspect()
	}
	m.mu.Lock()
	old, before := m.now, m.err
	next, doubt, err := choose(m.cfg.Target, found, old, patroni, m.term)
	m.remember(found, next, patroni)
	m.trail.measure(time.Now(), found, next)
	m.hosts, m.now, m.err = found, next, err
	if next != old {
		m.left.end()
		m.left = newLeaving()
	}
	first := false
	select {
	case <-m.looked:
	default:
		first = true
		close(m.looked)
	}
	m.mu.Unlock()

	if doubt == nil {
		m.doubt = ""
	} else if s := doubt.Error(); s != m.doubt {
		m.doubt = s
		m.cfg.Log.Error("the primary is not certain", "error", s)
	}
	switch {
	case err != nil && (first || before == nil || before.Error() != err.Error()):
		m.cfg.Log.Warn("no server to connect to; statements wait", "error", err)
	case err == nil && next != old && !first:
		m.cfg.Log.Info("new connections go to another server", "old", old.Host, "new", next.Host, "address", next.Address)
	}
	if next != old && !first && m.cfg.OnChange != nil {
		m.cfg.OnChange(old, next)
	}
}

// remember keeps the term of the primary that was chosen; m.mu is held. Terms only grow,
// unless Patroni names a leader of an earlier one, because the cluster was restored.
func (m *Monitor) remember(found []Status, next Endpoint, patroni bool) {
	for i := range found {
		if h := &found[i]; h.Endpoint == next && h.Err == nil && h.Role == RolePrimary && h.Term > 0 && (patroni || h.Term > m.term) {
			m.term = h.Term
		}
	}
}

// Forget requests a round soon, in which a primary of an earlier term may be chosen if there
// is no other: an operator has restored it.
func (m *Monitor) Forget() {
	m.mu.Lock()
	m.term = 0
	m.mu.Unlock()
	m.Suspect()
}

// errNotYet is of a host whose answer is not waited for, since another has taken its place.
var errNotYet = errors.New("it had not answered when another host was known to have taken its place")

// probe asks all hosts and waits for their answers; once a newly promoted primary has
// answered, it does not wait for hosts that hang.
func (m *Monitor) probe(ctx context.Context, found []Status, patroni bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.Timeout, fmt.Errorf("no answer within %v: %w", m.cfg.Timeout, context.DeadlineExceeded))
	defer cancel()
	type answer struct {
		host   int
		report Report
		err    error
	}
	answers := make(chan answer, len(found))
	for i, h := range found {
		found[i].Err = errNotYet
		m.probes.Go(func() {
			r, err := m.cfg.Probe(ctx, h.Endpoint)
			answers <- answer{i, r, err}
		})
	}
	for range found {
		a := <-answers
		h := &found[a.host]
		h.Report, h.Err = a.report, a.err
		if m.succeeds(h, patroni) {
			return
		}
	}
}

// succeeds reports whether a host has certainly replaced the current primary.
func (m *Monitor) succeeds(h *Status, patroni bool) bool {
	if !m.cfg.Target.wantsPrimary() || h.Err != nil || h.Role != RolePrimary || h.Endpoint == m.now || m.now == (Endpoint{}) || patroni && !h.Leader {
		return false
	}
	for _, was := range m.hosts { // only this goroutine changes m.hosts and m.now
		if was.Endpoint == m.now {
			return was.Term > 0 && h.Term > was.Term
		}
	}
	return false
}

// forgive ignores a probe of the current host that timed out, and reports whether it did so:
// a busy host is no reason to close every connection to it. One timeout is ignored, and further
// ones as long as the host answers statements.
func (m *Monitor) forgive(ctx context.Context, found []Status) bool {
	for i := range found {
		h := &found[i]
		if h.Endpoint != m.now || !errors.Is(h.Err, context.DeadlineExceeded) {
			continue
		}
		for _, was := range m.hosts { // only this goroutine changes m.hosts and m.now
			if was.Endpoint == m.now && was.Err == nil && (!was.late || m.cfg.Alive != nil && m.cfg.Alive(ctx)) {
				h.Report, h.Err, h.late = was.Report, nil, true
				return true
			}
		}
	}
	return false
}

// members lists the hosts, from Patroni if it answers.
func (m *Monitor) members(ctx context.Context) (found []Status, patroni bool) {
	if len(m.cfg.Patroni) > 0 {
		members, err := askPatroni(ctx, m.cfg.Patroni, m.cfg.Timeout)
		if err == nil {
			for _, p := range members {
				for _, e := range m.resolve(ctx, p.host) {
					found = append(found, Status{Endpoint: e, Leader: p.leader})
				}
			}
			if m.alone {
				m.cfg.Log.Info("Patroni answers again")
			}
			m.alone = false
			return found, true
		}
		if !m.alone && ctx.Err() == nil {
			m.cfg.Log.Warn("Patroni does not answer; the hosts are asked themselves", "error", err)
		}
		m.alone = true
	}
	for _, host := range m.cfg.Hosts {
		for _, e := range m.resolve(ctx, host) {
			found = append(found, Status{Endpoint: e})
		}
	}
	return found, false
}

// resolve returns the addresses of a host. If its name cannot be resolved, these are the
// last known ones, or the name itself.
func (m *Monitor) resolve(ctx context.Context, host string) []Endpoint {
	if literal(host) {
		return []Endpoint{{host, host}}
	}
	name, port, _ := net.SplitHostPort(host) // literal has seen that it can be split
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	addresses, err := m.cfg.Lookup(ctx, name)
	if err != nil || len(addresses) == 0 {
		addresses = m.addresses[name]
		if len(addresses) == 0 {
			return []Endpoint{{host, host}}
		}
	} else {
		slices.Sort(addresses)
		m.addresses[name] = addresses
	}
	list := make([]Endpoint, len(addresses))
	for i, a := range addresses {
		list[i] = Endpoint{host, net.JoinHostPort(a, port)}
	}
	return list
}
