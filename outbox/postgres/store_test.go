package postgres

import (
	"testing"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/storetest"
)

func TestStore(t *testing.T) {
	pg := server(t)
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		r := newRig(t, pg)
		r.exec(`CREATE SCHEMA "Other Schema"`)
		return storetest.Harness{
			Open: func(t *testing.T, table string) outbox.Store { return r.open(t, Options{Table: table}) },
			DB:   r.db,
			Tx:   outbox.Postgres,
			Zone: "+00",
			Quote: func(name string) string {
				n := splitName(name)
				if n.schema == "" {
					return ident(n.table)
				}
				return n.q("")
			},
			Names: []string{`qu"o'te\d%s`, "Other Schema.weir_outbox", "ключ"},
			Migrate: func(t *testing.T, plan outbox.Plan, n int) bool {
				return r.migrateBroken(t, "", plan, n)
			},
			CutLease: func(_ *testing.T, shard int) { r.cut(shard) },
			OddZone: []string{
				"SET timezone = 'Asia/Kathmandu'", "SET timezone = '<+1234>-12:34'",
				"SET timezone = 'Pacific/Apia'; SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'",
			},
			SkipLocked: true, Partitions: true, Tail: true,
		}
	})
}
