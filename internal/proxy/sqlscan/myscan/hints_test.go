package myscan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// The grammar of hints has its tests in package sqlscan; here is where they
// stand in a text.
func TestHints(t *testing.T) {
	ten := sqlscan.BatchHint{Kind: sqlscan.BatchWindow, Window: 10 * time.Millisecond}
	auto := sqlscan.BatchHint{Kind: sqlscan.BatchAuto}
	for sql, want := range map[string]sqlscan.Hints{
		"/* batch:10 */ insert into t values (1)":                  {Batch: ten},
		"/*batch:10*/insert into t values (1)":                     {Batch: ten},
		"# batch:10\ninsert into t values (1)":                     {Batch: ten},
		"-- batch:10\ninsert into t values (1)":                    {Batch: ten},
		"--\tbatch\ninsert into t values (1)":                      {Batch: auto},
		"-- ttl:60\n# file:a.go\n/* line:7 */ select 1":            {TTL: time.Minute, File: "a.go", Line: 7},
		"/*batch='auto',file='a%2Fb'*/ select 1":                   {Batch: auto, File: "a/b"},
		"select 1 /*line='7'*/":                                    {Line: 7},
		"select 1; /*line='7'*/ ":                                  {Line: 7},
		"select 1 /*!99999 x */ /*line='7'*/":                      {Line: 7},
		"/*!99999 batch */ /* batch:10 */ insert into t values(1)": {Batch: ten},
		"select 1 /* batch */":                                     {},
		"select 1 -- line='7'":                                     {},
		"/*! batch */ insert into t values (1)":                    {},
		"/*! /* batch */ insert into t values (1) */":              {},
		"/*+ batch */ insert into t values (1)":                    {},
		"/*M! batch */ select 1":                                   {},
		"insert /* batch */ into t values (1)":                     {},
		"insert into t values ('/* batch */')":                     {},
		"'/* batch */'":                                            {},
		"/* batch job nightly */ select 1":                         {},
		"/* batch:x */ select 1":                                   {Bad: []string{"batch:x is not auto, off or a number of milliseconds from 0 to 1000"}},
		"/* batch":                                                 {},
		"--batch\nselect 1":                                        {},
	} {
		if diff := cmp.Diff(want, Scan(sql, onMariaDB).Hints); diff != "" {
			t.Errorf("%q (-want +got)\n%s", sql, diff)
		}
	}
}
