package profile

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestParseScript(t *testing.T) {
	tests := []struct {
		name, engine, text string
		want               []string // statements; "?" before those that return rows
		params             string   // of each statement, by name
	}{
		{"numbered", EnginePostgres, "-- param id = int(1, 9)\nSELECT :id + :id", []string{"?SELECT $1 + $1"}, "id"},
		{"question marks", EngineMariaDB, "-- param id = int(1, 9)\nSELECT :id + :id", []string{"?SELECT ? + ?"}, "id id"},
		{"colons", EngineOracle, "-- param a = seq\n-- param b = text(3)\nINSERT INTO t VALUES (:b, :a)", []string{"INSERT INTO t VALUES (:1, :2)"}, "b a"},
		{"several statements", EnginePostgres, "-- param d = int(-5, 5)\nBEGIN;\nUPDATE t SET x = x + :d;;\nCOMMIT;\n", []string{"BEGIN", "UPDATE t SET x = x + $1", "COMMIT"}, "; d;"},
		{"not a parameter", EnginePostgres, "-- param a = seq\nSELECT ':a', \":a\", x::a, y[1:2], $$ :a ; $$, $t$ :a $t$, /* :a ; */ :a -- :a ;\n", []string{"?SELECT ':a', \":a\", x::a, y[1:2], $$ :a ; $$, $t$ :a $t$, /* :a ; */ $1"}, "a"},
		{"doubled quotes", EnginePostgres, "SELECT 'it''s; \\'; SELECT 2", []string{"?SELECT 'it''s; \\'", "?SELECT 2"}, ";"},
		{"backslashes", EngineMySQL, "SELECT 'it\\'s; '; SELECT `;`", []string{"?SELECT 'it\\'s; '", "?SELECT `;`"}, ";"},
		{"hash comments", EngineMySQL, "# one; two\nSELECT 1", []string{"?SELECT 1"}, ""},
		{"hints stay", EnginePostgres, "/* batch:10 */ INSERT INTO t VALUES (1) RETURNING id", []string{"?/* batch:10 */ INSERT INTO t VALUES (1) RETURNING id"}, ""},
		{"a hint before a select", EnginePostgres, "/* ttl:60 */ SELECT 1", []string{"?/* ttl:60 */ SELECT 1"}, ""},
		{"spaces around", EnginePostgres, "\n\n  select 1  \n;\n -- the end\n", []string{"?select 1"}, ""},
	}
	for _, tt := range tests {
		s, err := ParseScript(tt.engine, tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var got, params []string
		for _, st := range s.statements {
			text := st.text
			if st.query {
				text = "?" + text
			}
			got = append(got, text)
			var names []string
			for _, p := range st.params {
				names = append(names, p.name)
			}
			params = append(params, strings.Join(names, " "))
		}
		if strings.Join(got, "|") != strings.Join(tt.want, "|") {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, tt.want)
		}
		var want []string
		for _, p := range strings.Split(tt.params, ";") {
			want = append(want, strings.TrimSpace(p))
		}
		if strings.Join(params, ";") != strings.Join(want, ";") {
			t.Errorf("%s: parameters %q, want %q", tt.name, params, want)
		}
	}
}

func TestScriptsThatMakeNoSense(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "no statement",
		" ; -- nothing":              "no statement",
		"SELECT :who":                "line 1: :who is not declared",
		"\n\nSELECT\n 1, :who":       "line 4: :who",
		"-- param a = seq\nSELECT 1": "a is declared and not used",
		"-- param a = seq\n-- param a = seq\nSELECT :a":                          "line 2: parameter a is declared twice",
		"-- param a\nSELECT :a":                                                  "want NAME =",
		"-- param A = seq\nSELECT :A":                                            "want NAME =",
		"-- param a = int(5, 1)\nSELECT :a":                                      "no whole number from 5 to 1",
		"-- param a = int(-9223372036854775808, 9223372036854775807)\nSELECT :a": "can be drawn",
		"-- param a = int(1)\nSELECT :a":                                         "want int(FROM, TO)",
		"-- param a = int(1, x)\nSELECT :a":                                      `"x" is not a number`,
		"-- param a = int(1, 2\nSELECT :a":                                       "does not end",
		"-- param a = text(-1)\nSELECT :a":                                       "0 to 1048576 letters",
		"-- param a = uuid\nSELECT :a":                                           "a = uuid",
		"SELECT 'open":                                                           "line 1: ' without an end",
		"SELECT 1;\nSELECT /* open":                                              "line 2: comment without an end",
		"SELECT $q$ open":                                                        "$q$ without an end",
	} {
		if _, err := ParseScript(EnginePostgres, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want mention of %q", text, err, want)
		}
	}
}

func TestParametersAreDrawn(t *testing.T) {
	s, err := ParseScript(EnginePostgres, "-- param n = int(-2, 3)\n-- param w = text(5)\n-- param k = seq\nSELECT :n, :w; SELECT :k, :n")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]any, 3)
	seen := make(map[int64]bool)
	for i := range int64(200) {
		s.drawAll(rng, values)
		first := s.statements[0].args(values, nil)
		second := s.statements[1].args(values, nil)
		n := first[0].(int64)
		seen[n] = true
		if n < -2 || n > 3 || len(first[1].(string)) != 5 || second[0].(int64) != i+1 || second[1] != first[0] {
			t.Fatalf("drew %v and %v", first, second)
		}
	}
	if len(seen) != 6 {
		t.Errorf("drew %d of 6 numbers", len(seen))
	}
}

func FuzzParseScript(f *testing.F) {
	f.Add(EnginePostgres, "-- param id = int(1, 9)\nSELECT :id::int, ':x', $$;$$; COMMIT")
	f.Add(EngineMySQL, "# c\nSELECT 'a\\'b', `x` /* ; */; -- param\n")
	f.Add(EngineOracle, "-- param a = seq\nSELECT :a FROM dual")
	f.Fuzz(func(t *testing.T, engine, text string) {
		s, err := ParseScript(engine, text)
		if err != nil {
			return
		}
		rng := rand.New(rand.NewPCG(1, 2))
		values := make([]any, len(s.params))
		total := 0
		for _, p := range s.params {
			if p.kind == paramText {
				total += int(p.hi)
			}
		}
		if total < maxText {
			s.drawAll(rng, values)
		}
		for _, st := range s.statements {
			if strings.TrimSpace(st.text) == "" {
				t.Errorf("an empty statement in %q", text)
			}
			if len(st.args(values, nil)) != len(st.params) {
				t.Errorf("arguments do not match the placeholders of %q", st.text)
			}
		}
	})
}
