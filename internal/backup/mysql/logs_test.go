package mysql

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
)

func TestDefaultLogName(t *testing.T) {
	for id, want := range map[string]string{
		"":                                     "server",
		"3P+rYevMrXRF3qSz8nDlWfgKBtg=":         "dcffab61ebccad7445dea4b3f270e559f80a06d8",
		"3e11fa47-71ca-11e1-9e33-c80aa9429562": "3e11fa47-71ca-11e1-9e33-c80aa9429562",
		"../etc":                               "server",
	} {
		got := DefaultLogName(id)
		if got != want || CheckLogName(got) != nil {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
}

func TestCheckLogName(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "run-0001.json", "journal-1", "-x", strings.Repeat("x", 101), "ü"} {
		if CheckLogName(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}

// at is a position in the log of the tests.
func at(file string, pos uint64) binlog.Position { return binlog.Position{File: file, Pos: pos} }

func TestPositionsHaveAnOrder(t *testing.T) {
	line := []binlog.Position{at("b.000001", 4), at("b.000001", 900), at("b.000002", 4), at("b.999999", 5), at("b.1000000", 4)}
	for i := range line {
		for j := range line {
			if got := Before(line[i], line[j]); got != (i < j) {
				t.Errorf("%s before %s: %v", line[i], line[j], got)
			}
		}
	}
}

// taken is a backup of a server at a position.
func taken(server, file string, pos int64) archive.Summary {
	return archive.Summary{ID: "b", Engine: archive.MariaDB, Server: archive.Server{SystemID: server}, Position: archive.Position{Binlog: file, Offset: pos}}
}

// TestOldestPositionThatIsNeeded says of which logs something may be removed.
func TestOldestPositionThatIsNeeded(t *testing.T) {
	postgres, hidden, noLog := taken("s", "b.000001", 4), taken("s", "", 0), taken("s", "", 0)
	postgres.Engine, hidden.Sealed = archive.PostgreSQL, "sealed"
	l := Log{Name: "l", Server: "s"}
	for _, c := range []struct {
		name string
		stay []archive.Summary
		want binlog.Position
		ok   bool
	}{
		{"no backup", nil, binlog.Position{}, false},
		{"one", []archive.Summary{taken("s", "b.000003", 50)}, at("b.000003", 50), true},
		{"the older of two", []archive.Summary{taken("s", "b.000010", 4), taken("s", "b.000009", 99)}, at("b.000009", 99), true},
		{"of another server", []archive.Summary{taken("other", "b.000003", 50)}, binlog.Position{}, false},
		{"of a nameless one alone", []archive.Summary{taken("", "b.000003", 50)}, at("b.000003", 50), false},
		{"of a nameless one, too", []archive.Summary{taken("", "b.000003", 50), taken("s", "b.000007", 4)}, at("b.000003", 50), true},
		{"hidden", []archive.Summary{taken("s", "b.000003", 50), hidden}, at("b.000003", 50), false},
		{"of a server without a log", []archive.Summary{noLog, taken("s", "b.000003", 50)}, at("b.000003", 50), true},
		{"of PostgreSQL", []archive.Summary{postgres}, binlog.Position{}, false},
	} {
		if got, ok := l.oldest(c.stay); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %s, %v", c.name, got, ok)
		}
	}
}

// TestLogOfNobody finds no log where there is none, and none that is not of this
// server.
func TestLogOfNobody(t *testing.T) {
	s, err := archive.NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LogOf(t.Context(), s, taken("s", "b.000001", 4), ""); err == nil || errors.Is(err, my.ErrLogGap) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := LogOf(t.Context(), s, taken("s", "", 0), ""); err == nil || !strings.Contains(err.Error(), "no position") {
		t.Errorf("no position: %v", err)
	}
	if err := s.Put(t.Context(), LogDir("l")+sourceName, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := Logs(t.Context(), s); err == nil || !strings.Contains(err.Error(), sourceName) {
		t.Errorf("a note that is torn: %v", err)
	}
}
