package mysql

import (
	"slices"
	"strings"
	"testing"
)

func namesOfLocks(sql string) []string { return slices.Collect(lockNames(sql, upper(sql))) }

// Letters whose lower or upper case takes another number of bytes, and bytes that are no
// UTF-8, do not move what is looked at.
func TestNamesOfLocks(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]string{
		"SELECT 1":                nil,
		"SELECT GET_LOCK('a', 0)": {"a"},
		"SELECT get_lock ( 'a' , 0), Get_Lock('b',1)":                    {"a", "b"},
		"SELECT GET_LOCK(CONCAT('a', 'b'), 0)":                           {""},
		"SELECT GET_LOCK('a' 'b', 0)":                                    {""},
		`SELECT GET_LOCK('a\'b', 0)`:                                     {""},
		"SELECT GET_LOCK('":                                              {""},
		"get_lock":                                                       {""},
		"\xff\xff\xff\xff\xffget_lock":                                   {""},
		"/* \xff\xff\xff\xff\xff\xff\xff\xff */ SELECT GET_LOCK('a', 0)": {"a"},
		"/* ȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺ */ SELECT GET_LOCK('a', 0)": {"a"},
		"/* \u212a\u212a\u212a İİİ ſſſ */ SELECT GET_LOCK('a', 0)":   {"a"},
	} {
		if got := namesOfLocks(sql); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}

func FuzzNamesOfLocks(f *testing.F) {
	f.Add("SELECT GET_LOCK('a', 0), get_lock ('b', 1), GET_LOCK(@c, 2)")
	f.Add("\xff\xff\xff\xff\xffget_lock")
	f.Add("ȺȺȺȺȺȺ get_lock('ſ', 0)")
	f.Fuzz(func(t *testing.T, sql string) {
		if folded := upper(sql); len(folded) != len(sql) {
			t.Fatalf("%q: folded to %q", sql, folded)
		}
		for _, name := range namesOfLocks(sql) {
			if !strings.Contains(sql, name) || strings.ContainsAny(name, `'\`) {
				t.Errorf("%q: lock %q", sql, name)
			}
		}
	})
}
