package myscan

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

func TestKeywordsFitTheirNames(t *testing.T) {
	if len(keywordNames) != int(lastKeyword)+1 {
		t.Errorf("%d names, last keyword %d", len(keywordNames), lastKeyword)
	}
	for k, name := range keywordNames[1:] {
		if got := lookupKeyword(name, lexicon.Hash(name)); got != keyword(k+1) {
			t.Errorf("%s: %d, want %d", name, got, k+1)
		}
		if upper := strings.ToUpper(name); lookupKeyword(upper, lexicon.Hash(upper)) != keyword(k+1) {
			t.Errorf("%s is not found", upper)
		}
	}
}

// A function that stood in two lists would belong to fewer servers than either
// says.
func TestFunctionListsAreDisjoint(t *testing.T) {
	all := strings.Fields(harmlessEverywhere + harmlessNewer + harmlessMySQL + harmlessMariaDB)
	for _, s := range specialFunctions {
		all = append(all, strings.Fields(s.names)...)
	}
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			t.Errorf("%s stands in two lists", all[i])
		}
	}
	for name := range strings.FieldsSeq(volatileNames + tightNames) {
		if _, found := slices.BinarySearch(all, name); !found {
			t.Errorf("%s is in no list of functions", name)
		}
	}
	for name := range strings.FieldsSeq(grammarWords) {
		if _, found := slices.BinarySearch(all, name); found {
			t.Errorf("%s is grammar and a function", name)
		}
	}
}

func TestFunctionsByServer(t *testing.T) {
	for _, c := range []struct {
		name                           string
		unknown, maria, mysql, mysql57 bool
	}{
		{"lower", true, true, true, true},
		{"get_lock", true, true, true, true},
		{"regexp_replace", false, true, true, false},
		{"nvl", false, true, false, false},
		{"uuid_to_bin", false, false, true, false},
		{"nextval", false, true, false, false},
		{"no_such_function", false, false, false, false},
		{"select", false, false, false, false},
		{"to_date", false, false, false, false},
	} {
		k := lookupKeyword(c.name, lexicon.Hash(c.name))
		for _, m := range []struct {
			mode Mode
			want bool
		}{{Mode{}, c.unknown}, {onMariaDB, c.maria}, {onMySQL, c.mysql}, {Mode{Version: 50744}, c.mysql57}} {
			if got := k.isFunction(m.mode); got != m.want {
				t.Errorf("%s on %+v: %t", c.name, m.mode, got)
			}
		}
	}
}
