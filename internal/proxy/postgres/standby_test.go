package postgres_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// TestCancelledWaitsOfGroupsForAStandby: each kind of group waits for a standby that there is
// none of. Who cancels is told what it would be directly, also where the request came before the
// group waited. The other member goes on waiting.
func TestCancelledWaitsOfGroupsForAStandby(t *testing.T) {
	t.Parallel()
	text := func(i int) []byte { return query(fmt.Sprintf("/* batch:200 */ INSERT INTO w VALUES (%d)", i)) }
	for _, c := range []struct {
		name    string
		message func(i int) []byte
		change  func(c *postgres.Config)
		members int
		early   bool // the request comes when the server has not begun
	}{
		{name: "solo lane", message: text, change: func(c *postgres.Config) { c.NoRowsLane = true }, members: 2},
		{name: "solo lane, early", message: text, change: func(c *postgres.Config) { c.NoRowsLane = true }, members: 2, early: true},
		{name: "series", message: func(i int) []byte { return run("/* batch:200 */ UPDATE w SET x = x WHERE x = $1", strconv.Itoa(i)) }, members: 2},
		{name: "rows lane, texts", message: text, members: 2},
		{name: "rows lane, prepared", message: func(i int) []byte { return run("/* batch:200 */ INSERT INTO w VALUES ($1)", strconv.Itoa(i)) }, members: 2},
		{name: "rows lane, one", message: text, members: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv, local := withoutStandby(t)
			local.want("INSERT INTO w VALUES (0), (1)", "INSERT_0_2 I")
			local.want("ALTER DATABASE postgres SET deadlock_timeout = '1s'", "ALTER_DATABASE I")
			w := startFor(t, srv, "postgres", c.change)
			var all []*wire
			answers := make([]chan []message, c.members)
			send := func(i, k int) {
				all[i].send(c.message(k))
				answers[i] = make(chan []message, 1)
				go func() {
					got, _ := all[i].until('Z')
					answers[i] <- got
				}()
			}
			answer := func(i int, meanwhile func()) (got []message) {
				eventually(t, "the write is answered", func() bool {
					meanwhile()
					select {
					case got = <-answers[i]:
						return true
					default:
						return false
					}
				})
				return got
			}
			served := func() {
				local.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			}
			for i := range c.members {
				all = append(all, w.wire())
				for n := 0; n < 3 || n < 100 && w.pool().Grouped == 0; n++ { // weir knows the table and the shape
					send(i, -1)
					answer(i, served)
				}
			}
			stop := func() (stopped []int) {
				// ROW(123 456) SELECT_1 I
				_, row, _ := strings.Cut(local.ask("SELECT string_agg(pid::text, ' ') AS p FROM pg_stat_activity WHERE usename IS NOT NULL AND client_port IS NOT NULL AND pid <> pg_backend_pid()"), "(")
				pids, _, _ := strings.Cut(row, ")")
				for _, pid := range strings.Fields(pids) {
					n, err := strconv.Atoi(pid)
					if err != nil {
						t.Fatal(err)
					}
					_ = syscall.Kill(n, syscall.SIGSTOP)
					stopped = append(stopped, n)
				}
				return stopped
			}
			goOn := func(stopped []int) {
				for _, pid := range stopped {
					_ = syscall.Kill(pid, syscall.SIGCONT)
				}
			}
			inFlight := func() bool {
				return slices.ContainsFunc(w.snapshot().Lanes, func(l sight.LaneStatus) bool { return l.InFlight > 0 })
			}
			var stopped []int
			if c.early {
				stopped = stop()
			}
			before := w.pool().Grouped
			for i := range c.members {
				send(i, i)
			}
			if c.early {
				// On a slow machine weir may have a question of its own first, which no stopped
				// server answers.
				tries := 0
				eventually(t, "a group is sent", func() bool {
					if tries++; tries%100 == 0 && !inFlight() {
						goOn(stopped)
						for i := range c.members {
							answer(i, served)
						}
						stopped, before = stop(), w.pool().Grouped
						for i := range c.members {
							send(i, i)
						}
					}
					return inFlight()
				})
				cancel(t, w, all[0])
				goOn(stopped)
			} else {
				eventually(t, "it waits for a standby", func() bool {
					return strings.Contains(local.ask("SELECT count(*) > 0 AS w FROM pg_stat_activity WHERE wait_event = 'SyncRep'"), "(t)")
				})
				cancel(t, w, all[0])
			}
			is := func(i int, got []message) {
				if e := noticeIn(got); e == nil || e.Code != "01000" || errorIn(got) != nil || !strings.HasSuffix(render(got), "_1 I") {
					t.Errorf("member %d, whose commit no standby has: %s", i, render(got))
				}
				all[i].want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
			}
			is(0, answer(0, func() {}))
			if c.members > 1 {
				if len(answers[1]) > 0 {
					t.Error("the other member does not wait any more")
				}
				is(1, answer(1, served))
			}
			if n := w.pool().Grouped - before; n != uint64(c.members) {
				t.Errorf("%d writes were grouped", n)
			}
		})
	}
}

// TestCancelledWaitsOfMembersApartForAStandby: the members of a group that has failed run again,
// each by itself, and each waits for a standby that there is none of. Any of them can be
// cancelled, as directly.
func TestCancelledWaitsOfMembersApartForAStandby(t *testing.T) {
	t.Parallel()
	srv, local := withoutStandby(t)
	local.want("ALTER TABLE w ADD PRIMARY KEY (x)", "ALTER_TABLE I")
	local.want("INSERT INTO w VALUES (2)", "INSERT_0_1 I")
	w := startFor(t, srv, "postgres", func(c *postgres.Config) { c.NoSoloLane, c.PoolSize = true, 16 })
	all := []*wire{w.wire(), w.wire(), w.wire(), w.wire()}
	answers := make([]chan []message, len(all))
	for i, c := range all {
		c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		answers[i] = make(chan []message, 1)
	}
	eventually(t, "weir knows the table", func() bool {
		if w.pool().Grouped > 0 {
			return true
		}
		all[0].ask("/* batch:200 */ INSERT INTO w VALUES (2)")
		return false
	})
	for i, c := range all {
		c.send(query(fmt.Sprintf("/* batch:200 */ INSERT INTO w VALUES (%d)", i)))
		go func() {
			got, _ := c.until('Z')
			answers[i] <- got
		}()
	}
	if got := <-answers[2]; errorIn(got) == nil || errorIn(got).Code != "23505" {
		t.Errorf("the duplicate: %s", render(got))
	}
	eventually(t, "the others wait for a standby", func() bool {
		return local.ask("SELECT count(*) = 3 AS w FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "[w] (t) SELECT_1 I"
	})
	for _, i := range []int{3, 0, 1} {
		cancel(t, w, all[i])
		if got := <-answers[i]; noticeIn(got) == nil || noticeIn(got).Code != "01000" || !strings.HasSuffix(render(got), "INSERT_0_1 I") {
			t.Errorf("member %d, whose commit no standby has: %s", i, render(got))
		}
	}
}
