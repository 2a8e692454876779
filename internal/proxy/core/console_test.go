package core_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/core"
)

// rows is what a command of the console shows, each row as its cells by column.
func (s *fakeServer) rows(t *testing.T, command string) []map[string]string {
	t.Helper()
	a, err := s.Command(t.Context(), command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	if a.Tag != "SHOW" || a.Table == nil {
		t.Fatalf("%s: %+v, want a table", command, a)
	}
	var out []map[string]string
	for _, row := range a.Table.Rows {
		if len(row) != len(a.Table.Cols) {
			t.Fatalf("%s: %d cells in a row of %d columns", command, len(row), len(a.Table.Cols))
		}
		m := make(map[string]string)
		for i, name := range a.Table.Cols {
			m[name] = row[i]
		}
		out = append(out, m)
	}
	return out
}

func TestConsoleShows(t *testing.T) {
	t.Parallel()
	s := serve(t)
	l := s.Loops[0]
	on(t, l, func() {
		l.PoolList = append(l.PoolList, new(fakePool))
		l.Clients[7] = &fakeClient{l: l, id: 7, active: true}
	})
	if c := s.rows(t, "show clients;"); len(c) != 1 || c[0]["id"] != "7" || c[0]["database"] != "d" || c[0]["state"] != "active" || c[0]["type"] != "C" {
		t.Errorf("SHOW CLIENTS: %v", c)
	}
	if b := s.rows(t, "SHOW SERVERS"); len(b) != 1 || b[0]["addr"] != "192.0.2.1" || b[0]["port"] != "5432" || b[0]["state"] != "idle" || b[0]["remote_pid"] != "42" {
		t.Errorf("SHOW SERVERS: %v", b)
	}
	conf := s.rows(t, " SHOW\tCONFIG ;")
	if conf[0]["key"] != "fake" || !slices.ContainsFunc(conf, func(r map[string]string) bool {
		return r["key"] == "loops" && r["value"] == "2" && r["changeable"] == "no"
	}) {
		t.Errorf("SHOW CONFIG: %v", conf)
	}
	for _, r := range s.rows(t, "HELP") {
		if show, ok := strings.CutPrefix(r["command"], "SHOW "); ok {
			s.rows(t, "SHOW "+show)
		}
	}
	if a, err := s.Command(t.Context(), " ; "); err != nil || a.Tag != "" {
		t.Errorf("an empty command: %+v, %v", a, err)
	}
	for _, command := range []string{"SHOW NOTHING", "SELECT 1", "SHOWPOOLS"} {
		var no *core.Refusal
		if _, err := s.Command(t.Context(), command); !errors.As(err, &no) || !no.Unknown {
			t.Errorf("%s: %v, want a refusal", command, err)
		}
	}
}
