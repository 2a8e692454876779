package myscan

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetList(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want []Assignment
	}{
		{"set a = 1", []Assignment{{Name: "a", Value: "1", Kind: ValueNumber}}},
		{
			"SET A := 'x''y' , @@B=ON,@@session.`c` = -1.5 ,LOCAL d= default, e=NULL, f = `g`, h=0x1F -- end",
			[]Assignment{
				{Name: "a", Value: "'x''y'", Kind: ValueString},
				{Name: "b", Value: "ON", Kind: ValueWord, Bare: true},
				{Name: "c", Value: "-1.5", Kind: ValueNumber},
				{Name: "d", Value: "default", Kind: ValueDefault},
				{Name: "e", Value: "NULL", Kind: ValueNull},
				{Name: "f", Value: "`g`", Kind: ValueWord},
				{Name: "h", Value: "0x1F", Kind: ValueNumber},
			},
		},
		{
			"set global a = 1, b = 2, @@c = 3, session d = 4, e = 5, @f = 6, persist g = 7, @@persist_only.h = 8, @@global.i.j = 9",
			[]Assignment{
				{Name: "a", Value: "1", Kind: ValueNumber, Scope: ScopeGlobal},
				{Name: "b", Value: "2", Kind: ValueNumber, Scope: ScopeGlobal},
				{Name: "c", Value: "3", Kind: ValueNumber, Bare: true},
				{Name: "d", Value: "4", Kind: ValueNumber},
				{Name: "e", Value: "5", Kind: ValueNumber},
				{Name: "f", Value: "6", Kind: ValueNumber, Scope: ScopeUser},
				{Name: "g", Value: "7", Kind: ValueNumber, Scope: ScopePersist},
				{Name: "h", Value: "8", Kind: ValueNumber, Scope: ScopePersistOnly},
				{Name: "i.j", Value: "9", Kind: ValueNumber, Scope: ScopeGlobal},
			},
		},
		{
			"set names utf8mb4 collate default, names latin1 collate 'default'",
			[]Assignment{
				{Name: "names", Value: "utf8mb4", Kind: ValueWord},
				{Name: "names", Value: "latin1", Kind: ValueWord, Collate: "'default'"},
			},
		},
		{
			"set names utf8mb4 collate 'utf8mb4_bin', character set default, charset 'latin1', char set binary",
			[]Assignment{
				{Name: "names", Value: "utf8mb4", Kind: ValueWord, Collate: "'utf8mb4_bin'"},
				{Name: "character set", Value: "default", Kind: ValueDefault},
				{Name: "character set", Value: "'latin1'", Kind: ValueString},
				{Name: "character set", Value: "binary", Kind: ValueWord},
			},
		},
		{
			"set a = concat('x', 'y', (select 1)), b = 1 + 2, c = @@d, e = @f, g = 'a' 'b', h = N'x', i = x'41', j = k.l, m = current_user, n = ?",
			[]Assignment{
				{Name: "a", Value: "concat('x', 'y', (select 1))"},
				{Name: "b", Value: "1 + 2"},
				{Name: "c", Value: "@@d"},
				{Name: "e", Value: "@f"},
				{Name: "g", Value: "'a' 'b'"},
				{Name: "h", Value: "N'x'"},
				{Name: "i", Value: "x'41'"},
				{Name: "j", Value: "k.l"},
				{Name: "m", Value: "current_user"},
				{Name: "n", Value: "?"},
			},
		},
		{
			"set @`a b` = 1, @'c' := 'd', @E.f=g",
			[]Assignment{
				{Name: "a b", Value: "1", Kind: ValueNumber, Scope: ScopeUser},
				{Name: "c", Value: "'d'", Kind: ValueString, Scope: ScopeUser},
				{Name: "E.f", Value: "g", Kind: ValueWord, Scope: ScopeUser},
			},
		},
		{
			"set session transaction isolation level read committed, read only",
			[]Assignment{
				{Name: "transaction_isolation", Value: "'READ-COMMITTED'", Kind: ValueString},
				{Name: "transaction_read_only", Value: "ON", Kind: ValueWord},
			},
		},
		{
			"set transaction read write, isolation level repeatable read",
			[]Assignment{
				{Name: "transaction_read_only", Value: "OFF", Kind: ValueWord, Scope: ScopeNext},
				{Name: "transaction_isolation", Value: "'REPEATABLE-READ'", Kind: ValueString, Scope: ScopeNext},
			},
		},
		{
			"set @@tx_isolation = 'SERIALIZABLE', @@session.TX_READ_ONLY = 1, tx_isolation = 'x'",
			[]Assignment{
				{Name: "transaction_isolation", Value: "'SERIALIZABLE'", Kind: ValueString, Scope: ScopeNext, Bare: true},
				{Name: "transaction_read_only", Value: "1", Kind: ValueNumber},
				{Name: "transaction_isolation", Value: "'x'", Kind: ValueString},
			},
		},
		{"/*!40101 SET SQL_MODE='a' */;", []Assignment{{Name: "sql_mode", Value: "'a'", Kind: ValueString}}},
		{"/*!40101 SET */ a = 1", []Assignment{{Name: "a", Value: "1", Kind: ValueNumber}}},
		{"set", []Assignment{{}}},
		{"set a", []Assignment{{}}},
		{"set a = 1, ", []Assignment{{Name: "a", Value: "1", Kind: ValueNumber}, {}}},
		{"set a = 1 b = 2", []Assignment{{Name: "a", Value: "1 b = 2"}}},
		{"set names", []Assignment{{}}},
		{"set names = 'x'", []Assignment{{}}},
		{"set names 1", []Assignment{{}}},
		{"set transaction nonsense", []Assignment{{}}},
		{"set transaction isolation level read", []Assignment{{}}},
		{"set a = (1", []Assignment{{}}},
		{"set @@x.y = 1", []Assignment{{}}},
		{"set password = 'x'", nil},
		{"set role r", nil},
		{"set statement a = 1 for select 1", nil},
		{"select 1", nil},
	} {
		if diff := cmp.Diff(c.want, slices.Collect(Scan(c.sql, Mode{}).Set.All())); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.sql, diff)
		}
	}
}

func TestSetListStopsWhenAsked(t *testing.T) {
	n := 0
	for range Scan("set a = 1, b = 2", Mode{}).Set.All() {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d", n)
	}
}

func TestAssignmentText(t *testing.T) {
	for _, c := range []struct {
		value string
		mode  Mode
		want  string
		ok    bool
	}{
		{"1", Mode{}, "1", true},
		{"-1", Mode{}, "-1", true},
		{"ON", Mode{}, "ON", true},
		{"`a``b`", Mode{}, "a`b", true},
		{"'plain'", Mode{}, "plain", true},
		{"''", Mode{}, "", true},
		{"'it''s'", Mode{}, "it's", true},
		{`'a\'b\\c\nd\te\0f\bg\rh\Zi\%j\_k\x'`, Mode{}, "a'b\\c\nd\te\x00f\bg\rh\x1ai\\%j\\_kx", true},
		{`'a\b'`, noEscapes, `a\b`, true},
		{`"a""b'c"`, Mode{}, `a"b'c`, true},
		{`"a""b"`, ansi, `a"b`, true},
		{"default", Mode{}, "default", true},
		{"concat('a')", Mode{}, "concat('a')", false},
	} {
		list := slices.Collect(Scan("set x = "+c.value, c.mode).Set.All())
		if len(list) != 1 {
			t.Errorf("%s: %v", c.value, list)
			continue
		}
		if got, ok := list[0].Text(c.mode); got != c.want || ok != c.ok {
			t.Errorf("%s: %q %t, want %q %t", c.value, got, ok, c.want, c.ok)
		}
	}
}
