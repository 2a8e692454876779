package sqlscan

import "testing"

func TestVaries(t *testing.T) {
	for sql, want := range map[string]bool{
		"select v from random": false, "select random from t": false, "select random()": true, "select pg_catalog . RANDOM /* */ ( )": true,
		`select "random"()`: true, `select "Random"()`: false, `select U&"\0072andom"()`: true, "select 'random()'": false, "select now()": false,
		"select x.clock_timestamp()": true, "select uuid_generate_v4()": true, "select * from t tablesample system (3)": true, "select (random)": false,
		"select 'open": true,
	} {
		var text Text
		text.Read(sql)
		if got := text.Varies(); got != want {
			t.Errorf("%s: %v, want %v", sql, got, want)
		}
	}
}

func TestBody(t *testing.T) {
	for sql, want := range map[string]string{
		" /* ttl:5 */ -- x\n select 1 -- x\n , 2 /* y */ ": "select 1 -- x\n , 2", "select 1": "select 1", "/* a */": "/* a */", "select '/* x */'": "select '/* x */'",
		"select 1 /* a /* b */ c */;": "select 1 /* a /* b */ c */;",
	} {
		var text Text
		text.Read(sql)
		if got := text.Body(); got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}

func TestLiterals(t *testing.T) {
	for sql, want := range map[string][2]bool{
		"select 1": {}, "select now(), today from t -- 'now'": {}, `select "now"`: {}, "select $1": {},
		"select 'x'": {true, false}, "select 'known', 'nowhere', 'tomorrows'": {true, false}, "select $$x$$": {true, false}, "select E'\\n'": {true, false},
		"select 'now'": {true, true}, "select 'x', date ' Today '": {true, true}, "select $a$tomorrow 10:00$a$": {true, true},
		"select 'YESTERDAY'::date": {true, true}, "select 'now": {true, true},
	} {
		var text Text
		text.Read(sql)
		if some, moment := text.Literals(); [2]bool{some, moment} != want {
			t.Errorf("%s: %v, %v, want %v", sql, some, moment, want)
		}
	}
}
