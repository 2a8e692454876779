package postgres

import "testing"

// TestRowTextsKnowAgainWhatDiffersInConstantsAlone has texts known again by an earlier
// one, and others not.
func TestRowTextsKnowAgainWhatDiffersInConstantsAlone(t *testing.T) {
	const first = "/* batch */ INSERT INTO t (a, b) VALUES (1, 'x') RETURNING a"
	row := span{40, 48}
	if first[row.at:row.end] != "(1, 'x')" {
		t.Fatal(first[row.at:row.end])
	}
	var rs rowTexts
	want := &rowText{}
	rs.keep(first, row, want)
	for sql, tuple := range map[string]string{
		first: "(1, 'x')",
		"/* batch */ INSERT INTO t (a, b) VALUES (22.5, 'it''s; -- VALUES (1)') RETURNING a": "(22.5, 'it''s; -- VALUES (1)')",
		"/* batch */ INSERT INTO t (a, b) VALUES ('', 0) RETURNING a":                        "('', 0)",
	} {
		got, at := rs.find(sql)
		if got != want || sql[at.at:at.end] != tuple {
			t.Errorf("%s: %v, %v", sql, got, at)
		}
	}
	for _, sql := range []string{
		"/* batch:off */ INSERT INTO t (a, b) VALUES (1, 'x') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x') RETURNING b",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x'), (2, 'y') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x')",
		"/* batch */ INSERT INTO t (a, b) VALUES (-1, 'x') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (- 1, 'x') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, NULL) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x', 2) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, f(2)) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, E'x') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x' 'y') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x'\n'y') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x' || 'y') RETURNING a",
		`/* batch */ INSERT INTO t (a, b) VALUES (1, 'x\') RETURNING a`,
		"/* batch */ INSERT INTO t (a, b) VALUES (1e5, 'x') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1., 'x') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (0x1, 'x') RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x' /* ' */) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, 'x'; DROP TABLE t) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (1, $1) RETURNING a",
		"/* batch */ INSERT INTO t (a, b) VALUES (", "/* batch */ INSERT INTO t (a, b) VALUES", "",
	} {
		if got, _ := rs.find(sql); got != nil {
			t.Errorf("%s is taken for the first", sql)
		}
	}
}

// TestRowTextsAreBounded: texts that are never the same again leave no more than so much.
func TestRowTextsAreBounded(t *testing.T) {
	var rs rowTexts
	table := make([]byte, 0, 64)
	for i := range 3 * maxRowTexts {
		table = append(table[:0], "INSERT INTO t"...)
		for n := i; n > 0; n /= 10 {
			table = append(table, byte('0'+n%10))
		}
		at := len(table) + len(" VALUES ")
		sql := string(table) + " VALUES (1)"
		rs.keep(sql, span{at, at + 3}, &rowText{})
		if got, _ := rs.find(sql); got == nil {
			t.Fatalf("%s is not known", sql)
		}
		if len(rs.m) > maxRowTexts || rs.bytes > maxRowTextBytes {
			t.Fatalf("%d texts, %d bytes", len(rs.m), rs.bytes)
		}
	}
}
