package myscan

import "testing"

func TestVaries(t *testing.T) {
	for sql, want := range map[string]bool{
		"select rand from t": false, "select RAND()": true, "select `rand` (1)": true, "select 'rand()'": false, "select now()": false, "select sysdate()": true,
		"select uuid()": true, "select a from b where c = connection_id()": true, "select /*! rand() */": true,
	} {
		var text Text
		text.Read(sql, Mode{})
		if got := text.Varies(); got != want {
			t.Errorf("%s: %v, want %v", sql, got, want)
		}
	}
}

func TestBody(t *testing.T) {
	for sql, want := range map[string]string{
		" /* ttl:5 */ # x\n select 1 -- x\n , 2 /* y */ ": "select 1 -- x\n , 2", "select 1": "select 1", "/*!50000 select */ 1 /* x */": "/*!50000 select */ 1 /* x */",
		"/* x */ select /*! 2 + */ 1": "/* x */ select /*! 2 + */ 1",
	} {
		var text Text
		text.Read(sql, Mode{Version: 80000})
		if got := text.Body(); got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}
