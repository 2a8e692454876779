package sqlscan

import (
	"slices"
	"strings"
	"testing"
)

func TestWordsOfStatements(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]string{
		"":                                    {""},
		"DROP Table a.B; -- x\n COMMIT":       {"drop table a . b", "commit"},
		"/* a /* b */ c */ x":                 {"x"},
		`"A ""b""" 'it''s' $1`:                {`'A "b"' 'it's' $1`},
		"/* without an end":                   {""},
		"'without an end":                     {"'without an end'"},
		"ALTER ROLE \xc4\xd6 RENAME TO \xe4B": {"alter role \xc4\xd6 rename to \xe4b"}, // LATIN1
	} {
		var got []string
		for w := WordsOf(sql); !w.Done(); {
			var words []string
			for x, ok := w.Next(); ok; x, ok = w.Next() {
				if x.Quoted {
					x.Text = "'" + x.Text + "'"
				}
				words = append(words, x.Text)
			}
			got = append(got, strings.Join(words, " "))
			if w.Done() && w.At() != len(sql) {
				t.Errorf("%q: %d bytes were read", sql, w.At())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}

func TestNamesAmongWords(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		`a`:                          "a",
		`IF NOT EXISTS Shop."Order"`: "Order",
		`only a.b.c (d)`:             "c",
		`U&"\0061"`:                  "",
		`(a)`:                        "",
		``:                           "",
		strings.Repeat("n", 70):      strings.Repeat("n", 63),
	} {
		w := WordsOf(sql)
		if got := w.Name(); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}

func TestDivisibleTexts(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"SELECT 'a;b'; SELECT 1":        true,
		"SELECT $$;$$":                  false,
		`SELECT E'\';'`:                 false,
		strings.Repeat(" ", MaxWords):   true,
		strings.Repeat(" ", MaxWords+1): false,
	} {
		if got := Divisible(sql); got != want {
			t.Errorf("%.30q: %v", sql, got)
		}
	}
}
