package binlog

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// Features of MySQL alone.

func TestTaggedGTIDs(t *testing.T) {
	s := server(t, lab.FlavorMySQL)
	name, c := s.database(t)
	run(t, c, "CREATE TABLE a (id INT)")
	before := NewReader(s.stream(t, StreamConfig{}), ReaderConfig{}).Executed()
	run(t, c, "SET gtid_next = 'AUTOMATIC:weir_tag'")
	for i := range 70 { // numbers of more than one byte
		run(t, c, "INSERT INTO a VALUES ("+itoa(i)+")")
	}
	run(t, c, "SET gtid_next = 'AUTOMATIC'", "INSERT INTO a VALUES (70)")
	r := NewReader(s.stream(t, StreamConfig{Start: Start{GTIDs: before}, NonBlocking: true}), ReaderConfig{Want: in(name)})
	all, found := marks(t, r)
	if len(found) != 71 {
		t.Fatalf("%d transactions, want 71", len(found))
	}
	if got, want := r.Executed().String(), strings.ReplaceAll(one(t, c, "SELECT @@global.gtid_executed"), "\n", ""); got != strings.ReplaceAll(want, ", ", ",") {
		parsed, err := ParseGTIDSet(want)
		if err != nil || parsed.String() != got {
			t.Errorf("executed %s, the server says %s (%v)", got, want, err)
		}
	}
	if !strings.Contains(r.Executed().String(), ":weir_tag:") {
		t.Errorf("no tag in %s", r.Executed())
	}
	m := found[50]
	set, err := ParseGTIDSet(m.executed)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all[m.lines:], s.log(t, Start{GTIDs: set}, ReaderConfig{Want: in(name)})); diff != "" {
		t.Error(diff)
	}
}

func TestJSONOfMySQL(t *testing.T) {
	s := server(t, lab.FlavorMySQL)
	name, c := s.database(t)
	run(t, c, "CREATE TABLE a (id INT, x JSON, n INT UNSIGNED, y JSON, INDEX ((CAST(x->'$.a' AS UNSIGNED ARRAY))))",
		"SET binlog_row_value_options = 'PARTIAL_JSON'")
	start := s.end(t, c)
	run(t, c, `INSERT INTO a VALUES (1, '{"a": [1,2], "b": "some text that is longer than a difference"}', 3000000000, NULL)`,
		`UPDATE a SET x = JSON_SET(x, '$.b', 'short')`, `UPDATE a SET y = '[]'`)
	r := NewReader(s.stream(t, StreamConfig{Start: Start{Position: start}, NonBlocking: true}), ReaderConfig{Want: in(name)})
	var kinds [][]Kind
	for {
		rec, err := r.Next(t.Context())
		if err != nil {
			break
		}
		if rec.Kind != Changes {
			continue
		}
		for rec.Rows.Next() {
			row := rec.Rows.After
			var k []Kind
			for _, v := range row {
				k = append(k, v.Kind())
			}
			kinds = append(kinds, k[:4])
			if row[2].Uint64() != 3000000000 {
				t.Errorf("n is %d", row[2].Uint64())
			}
		}
		if err := rec.Rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	want := [][]Kind{
		{KindInt, KindJSON, KindUint, KindNull},
		{KindInt, KindJSONDiff, KindUint, KindNull},
		{KindInt, KindJSONDiff, KindUint, KindJSON},
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Error(diff)
	}
}

func TestMySQLWithoutGTIDs(t *testing.T) {
	s := target{labtest.MySQL(t, lab.MySQLConfig{Durability: lab.Fast, Settings: map[string]string{
		"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", // from 9.7 on, they are ON
	}})}
	name, c := s.database(t)
	start := s.end(t, c)
	run(t, c, "CREATE TABLE a (id INT)", "BEGIN", "INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)", "COMMIT", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (3)")
	r := NewReader(s.stream(t, StreamConfig{Start: Start{Position: start}, NonBlocking: true}), ReaderConfig{Want: in(name)})
	want := []string{
		"begin", "statement CREATE TABLE a (id INT)", "commit",
		"begin", "insert a (1)", "insert a (2)", "commit", "begin", "insert a (3)", "commit",
	}
	if diff := cmp.Diff(want, lines(t, r)); diff != "" {
		t.Error(diff)
	}
	if r.Executed().String() != "" {
		t.Errorf("executed %s without GTIDs", r.Executed())
	}
	if _, err := Open(t.Context(), StreamConfig{Server: s.config(), Start: Start{GTIDs: &GTIDSet{}}}); !errors.Is(err, ErrNoGTIDs) {
		t.Errorf("begin with GTIDs: %v", err)
	}
}
