package upstream

import (
	"errors"
	"fmt"
	"strings"
)

// A Role is what a host says it is.
type Role uint8

// The roles.
const (
	RoleUnknown Role = iota // it answers, but has not said which it is
	RolePrimary             // it takes writes
	RoleStandby             // it takes none
)

func (r Role) String() string {
	return [...]string{"unknown", "primary", "standby"}[r]
}

// A Target says which host is wanted, in libpq's words for target_session_attrs.
type Target string

// The targets. libpq's read-write and primary are the same here, as are read-only
// and standby: a host is asked whether it takes writes.
const (
	TargetAny           Target = "any"
	TargetReadWrite     Target = "read-write"
	TargetPrimary       Target = "primary"
	TargetReadOnly      Target = "read-only"
	TargetStandby       Target = "standby"
	TargetPreferStandby Target = "prefer-standby"
)

// ParseTarget reads a target; "" is any.
func ParseTarget(s string) (Target, error) {
	switch t := Target(s); t {
	case "":
		return TargetAny, nil
	case TargetAny, TargetReadWrite, TargetPrimary, TargetReadOnly, TargetStandby, TargetPreferStandby:
		return t, nil
	}
	return "", fmt.Errorf("target_session_attrs %q: want any, read-write, read-only, primary, standby or prefer-standby", s)
}

// rank says how well a role serves the target: 0 not at all, more is better.
func (t Target) rank(r Role) int {
	switch t {
	case TargetReadWrite, TargetPrimary:
		if r == RolePrimary {
			return 1
		}
		return 0
	case TargetReadOnly, TargetStandby:
		if r == RoleStandby {
			return 1
		}
		return 0
	case TargetPreferStandby:
		if r == RoleStandby {
			return 2
		}
	}
	return 1
}

// wantsPrimary reports whether there is to be only one host that serves the target.
func (t Target) wantsPrimary() bool { return t == TargetReadWrite || t == TargetPrimary }

// An Endpoint is one address of one host.
type Endpoint struct {
	// Host is the host as configured, or as Patroni names it: host:port, or the
	// path of a Unix socket. Certificates are made out for it.
	Host string
	// Address is what to dial: Host with its name resolved.
	Address string
}

// A Report is what a probe found.
type Report struct {
	Role Role
	// Term counts promotions, as PostgreSQL's timeline does: of two hosts that
	// both say they are the primary, the one with the higher term is. 0: unknown.
	Term uint64
	// Follows: it takes writes, and those of another host as well, as a replica of
	// MySQL's does that was not made read-only.
	Follows bool
	// Position is how far its data go, as a number that grows with each change: of a
	// primary what it has written, of a standby what it has applied. In bytes of the
	// log of PostgreSQL, in transactions of MySQL and MariaDB. 0: unknown.
	Position uint64
}

// A Status is what is known of one endpoint.
type Status struct {
	Endpoint
	Report
	// Err is why the last probe failed, nil if it did not.
	Err error
	// Leader: Patroni names it as the leader.
	Leader bool
	// Lag is of a standby.
	Lag Lag

	late bool // the last probe took too long, and the one before is believed
}

// before reports whether it is the primary of a term that another one has ended: one
// that was replaced, and came back without knowing.
func (s *Status) before(term uint64) bool {
	return s.Err == nil && s.Role == RolePrimary && s.Term > 0 && s.Term < term
}

// say describes a status in an error; term is the last one that was seen.
func (s *Status) say(term uint64) string {
	if s.Err != nil {
		return s.Host + ": " + s.Err.Error()
	}
	if s.before(term) {
		return fmt.Sprintf("%s says that it is the primary, but of timeline %d, and one of timeline %d has been seen (if it was restored on purpose, give RECONNECT on the admin console)", s.Host, s.Term, term)
	}
	return s.Host + " is a " + s.Role.String()
}

// ErrNoHost is wrapped by the error of Current while no host serves the target.
var ErrNoHost = errors.New("no host serves")

// ErrTwoPrimaries is logged where two hosts say that they are the primary, and
// nothing tells which was promoted later.
var ErrTwoPrimaries = errors.New("several hosts say that they are the primary")

// choose picks the endpoint for new connections. now is the present one, its
// address "" if there is none. term is the highest of the primaries so far: where
// Patroni does not decide, and there is another host, one of an earlier term is not
// chosen again. doubt is not nil where the choice may be wrong.
func choose(target Target, hosts []Status, now Endpoint, patroni bool, term uint64) (next Endpoint, doubt, err error) {
	if patroni || !target.wantsPrimary() || len(hosts) < 2 {
		term = 0
	}
	best, bestRank := -1, 0
	current := -1
	var rivals []string
	for i := range hosts {
		h := &hosts[i]
		if h.Endpoint == now {
			current = i
		}
		if h.Err != nil {
			continue
		}
		rank := target.rank(h.Role)
		if patroni && target.wantsPrimary() && !h.Leader {
			rank = 0
		}
		if rank == 0 || h.before(term) {
			continue
		}
		if target.wantsPrimary() {
			rivals = append(rivals, h.Host)
		}
		if best >= 0 && !better(target, h, rank, &hosts[best], bestRank, now) {
			continue
		}
		best, bestRank = i, rank
	}
	if best >= 0 {
		if len(rivals) > 1 && tied(hosts, target, hosts[best].Term, patroni) {
			doubt = fmt.Errorf("%w: %s; weir keeps to %s", ErrTwoPrimaries, strings.Join(rivals, ", "), hosts[best].Host)
		}
		return hosts[best].Endpoint, doubt, nil
	}
	if current >= 0 && hosts[current].Err != nil {
		// It does not answer, and no other host has taken its place: it may restart.
		return now, nil, nil
	}
	said := make([]string, len(hosts))
	for i := range hosts {
		said[i] = hosts[i].say(term)
	}
	return Endpoint{}, nil, fmt.Errorf("%w as %s: %s", ErrNoHost, target, strings.Join(said, "; "))
}

// better reports whether h, of the given rank, serves more than the best one so far.
func better(target Target, h *Status, rank int, best *Status, bestRank int, now Endpoint) bool {
	if rank != bestRank {
		return rank > bestRank
	}
	if target.wantsPrimary() && h.Term != best.Term {
		return h.Term > best.Term
	}
	if h.Endpoint == now || best.Endpoint == now {
		return h.Endpoint == now // the present one stays
	}
	return best.Follows && !h.Follows // else the first of those that replicate from no other host
}

// tied reports whether several hosts say that they are the primary in one term.
func tied(hosts []Status, target Target, term uint64, patroni bool) bool {
	n := 0
	for i := range hosts {
		h := &hosts[i]
		if h.Err == nil && target.rank(h.Role) > 0 && h.Term == term && (!patroni || h.Leader) {
			n++
		}
	}
	return n > 1
}
