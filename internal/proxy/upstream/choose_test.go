package upstream

import (
	"errors"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	a, b, c := Endpoint{"a:1", "a:1"}, Endpoint{"b:1", "b:1"}, Endpoint{"c:1", "c:1"}
	is := func(e Endpoint, r Role) Status { return Status{Endpoint: e, Report: Report{Role: r}} }
	term := func(e Endpoint, n uint64) Status {
		return Status{Endpoint: e, Report: Report{Role: RolePrimary, Term: n}}
	}
	follows := func(e Endpoint) Status { return Status{Endpoint: e, Report: Report{Role: RolePrimary, Follows: true}} }
	leads := func(s Status) Status { s.Leader = true; return s }
	down := func(e Endpoint) Status { return Status{Endpoint: e, Err: errors.New("connection refused")} }
	primary, standby, unknown := RolePrimary, RoleStandby, RoleUnknown
	for _, tt := range []struct {
		name    string
		target  Target
		hosts   []Status
		now     Endpoint
		patroni bool
		term    uint64
		want    Endpoint
		doubt   bool
		err     string
	}{
		{name: "any takes the first", target: TargetAny, hosts: []Status{is(a, standby), is(b, primary)}, want: a},
		{name: "any that answers", target: TargetAny, hosts: []Status{down(a), is(b, unknown)}, want: b},
		{name: "any stays", target: TargetAny, hosts: []Status{is(a, primary), is(b, standby)}, now: b, want: b},
		{name: "the primary", target: TargetPrimary, hosts: []Status{is(a, standby), is(b, primary)}, want: b},
		{name: "promoted", target: TargetReadWrite, hosts: []Status{is(a, standby), is(b, primary)}, now: a, want: b},
		{name: "the old one is down", target: TargetReadWrite, hosts: []Status{down(a), is(b, primary)}, now: a, want: b},
		{name: "it restarts", target: TargetReadWrite, hosts: []Status{down(a), is(b, standby)}, now: a, want: a},
		{name: "demoted, nobody promoted", target: TargetReadWrite, hosts: []Status{is(a, standby), is(b, standby)}, now: a, err: "a:1 is a standby; b:1 is a standby"},
		{name: "role not said", target: TargetReadWrite, hosts: []Status{is(a, unknown)}, err: "a:1 is a unknown"},
		{name: "none at first", target: TargetReadWrite, hosts: []Status{down(a), is(b, standby)}, err: "a:1: connection refused; b:1 is a standby"},
		{name: "gone from the name", target: TargetAny, hosts: []Status{is(b, primary)}, now: a, want: b},
		{name: "two: the one in use", target: TargetPrimary, hosts: []Status{is(a, primary), is(b, primary)}, now: b, want: b, doubt: true},
		{name: "two: the later", target: TargetPrimary, hosts: []Status{term(a, 3), term(b, 4), term(c, 3)}, now: a, want: b},
		{name: "two of the later", target: TargetPrimary, hosts: []Status{term(a, 4), term(b, 4), term(c, 3)}, now: c, want: a, doubt: true},
		{name: "two: one follows the other", target: TargetPrimary, hosts: []Status{follows(a), is(b, primary), is(c, standby)}, want: b, doubt: true},
		{name: "two: the one in use follows", target: TargetPrimary, hosts: []Status{is(a, primary), follows(b)}, now: b, want: b, doubt: true},
		{name: "two that follow each other", target: TargetPrimary, hosts: []Status{follows(a), follows(b)}, want: a, doubt: true},
		{name: "Patroni decides", target: TargetPrimary, hosts: []Status{term(a, 9), leads(term(b, 4))}, now: a, patroni: true, want: b},
		{name: "Patroni's leader is not promoted yet", target: TargetPrimary, hosts: []Status{is(a, primary), leads(is(b, standby))}, now: a, patroni: true, err: "b:1 is a standby"},
		{name: "Patroni's leader was restored", target: TargetPrimary, hosts: []Status{leads(term(a, 3)), is(b, standby)}, now: a, patroni: true, term: 4, want: a},
		{name: "the former one is back", target: TargetPrimary, hosts: []Status{term(a, 3), down(b)}, term: 4, err: "a:1 says that it is the primary, but of timeline 3, and one of timeline 4 has been seen (if it was restored on purpose, give RECONNECT on the admin console); b:1: connection refused"},
		{name: "the former one is back, and the present one restarts", target: TargetPrimary, hosts: []Status{term(a, 3), down(b)}, now: b, term: 4, want: b},
		{name: "the former one is back, and the present one is demoted", target: TargetPrimary, hosts: []Status{term(a, 3), is(b, standby)}, now: b, term: 4, err: "b:1 is a standby"},
		{name: "its timeline is not known", target: TargetPrimary, hosts: []Status{term(a, 0), down(b)}, term: 4, want: a},
		{name: "the only host was restored", target: TargetPrimary, hosts: []Status{term(a, 3)}, now: a, term: 4, want: a},
		{name: "an earlier primary serves where any does", target: TargetAny, hosts: []Status{term(a, 3), down(b)}, term: 4, want: a},
		{name: "a standby", target: TargetStandby, hosts: []Status{is(a, primary), is(b, standby)}, want: b},
		{name: "rather a standby", target: TargetPreferStandby, hosts: []Status{is(a, primary), is(b, standby)}, now: a, want: b},
		{name: "else the primary", target: TargetPreferStandby, hosts: []Status{is(a, primary), down(b)}, now: b, want: a},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, doubt, err := choose(tt.target, tt.hosts, tt.now, tt.patroni, tt.term)
			if got != tt.want || (doubt != nil) != tt.doubt {
				t.Errorf("chose %q, doubt %v, want %q, %v", got.Host, doubt, tt.want.Host, tt.doubt)
			}
			if tt.err == "" && err != nil || tt.err != "" && (!errors.Is(err, ErrNoHost) || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	if got, err := ParseTarget(""); got != TargetAny || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := ParseTarget("prefer-standby"); got != TargetPreferStandby || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ParseTarget("writer"); err == nil || !strings.Contains(err.Error(), "read-write") {
		t.Errorf("writer: %v", err)
	}
}
