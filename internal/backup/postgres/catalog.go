package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
)

// table is a table whose definition is in the backup.
type table struct {
	oid         uint32
	schema      string
	relname     string
	pages       int64 // of its main fork; at first the server's estimate
	bytes       int64 // on disk, including TOAST
	columns     []string
	heap        bool     // of the access method heap, of which ranges of pages can be read
	partitioned bool     // partitioned: has no rows itself
	unlogged    bool     //
	portable    bool     // in binary format: no value depends on this database, as OIDs do
	root        []string // schema and name of the root through which the rows are restored; nil: itself
	condition   string   // a WHERE clause that selects the user's rows of an extension's table
}

func (t *table) name() string { return t.schema + "." + t.relname }
func (t *table) sql() string  { return pg.Qualified(t.schema, t.relname) }

// list lists the selected tables, including partitioned ones, and the configuration tables of
// extensions. Partitions by the hash of an enum have their root set, because the hash depends
// on the enum's OID, which is different in another database.
func (d *database) list(ctx context.Context) ([]*table, error) {
	where, err := d.condition(ctx)
	if err != nil {
		return nil, err
	}
	var tables []*table
	err = d.main.Query(ctx, `
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relpages,
       coalesce(a.amname, ''),
       ARRAY(SELECT attname FROM pg_catalog.pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
             ORDER BY attnum),
       e.cond,
       NOT EXISTS (SELECT FROM pg_catalog.pg_attribute f JOIN pg_catalog.pg_type y ON y.oid = f.atttypid
                   WHERE f.attrelid = c.oid AND f.attnum > 0 AND NOT f.attisdropped
                     AND (y.oid >= 16384 OR y.typsend = 0 OR y.typname OPERATOR(pg_catalog.~) '^_?reg')),
       CASE WHEN c.relispartition AND EXISTS (
         SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) p
         JOIN pg_catalog.pg_partitioned_table k ON k.partrelid = p.relid
         JOIN pg_catalog.pg_opclass o ON o.oid = ANY (k.partclass)
         JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod
         WHERE o.opcname = 'enum_ops' AND m.amname = 'hash')
       THEN (SELECT ARRAY[s.nspname, t.relname] FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
             WHERE t.oid = pg_catalog.pg_partition_root(c.oid)) END
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
LEFT JOIN pg_catalog.pg_depend x ON x.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND x.objid = c.oid
     AND x.objsubid = 0 AND x.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND x.deptype = 'e'
LEFT JOIN (SELECT pg_catalog.unnest(extconfig) AS id, pg_catalog.unnest(extcondition) AS cond FROM pg_catalog.pg_extension) e ON e.id = c.oid
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND `+where+`
ORDER BY n.nspname, c.relname`,
		func(row []string) error {
			tables = append(tables, &table{
				oid: uint32(pg.Number(row[0])), schema: row[1], relname: row[2],
				partitioned: row[3] == "p", unlogged: row[4] == "u",
				pages: pg.Number(row[5]),
				heap:  row[6] == "heap", columns: d.sharedColumns(row[7]), condition: row[8], portable: row[9] == "t",
				root: pg.ParseArray(row[10]),
			})
			if !utf8.ValidString(row[1] + row[2] + row[7]) {
				return fmt.Errorf("a name in table %q.%q is not UTF-8, which a database in SQL_ASCII does not ensure: rename it", row[1], row[2])
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return tables, nil
}

// sharedColumns parses an array of columns, and keeps one copy of lists that several tables
// have.
func (d *database) sharedColumns(array string) []string {
	c, ok := d.columns[array]
	if !ok {
		if d.columns == nil {
			d.columns = map[string][]string{}
		}
		c = pg.ParseArray(array)
		d.columns[array] = c
	}
	return c
}

// measure queries the sizes of the tables. That takes a lock for a moment, so it is done when
// all are locked.
func (d *database) measure(ctx context.Context) error {
	byOID := make(map[string]*table, len(d.tables))
	oids := make([]string, len(d.tables))
	for i, t := range d.tables {
		oids[i] = strconv.FormatUint(uint64(t.oid), 10)
		byOID[oids[i]] = t
	}
	err := d.main.Query(ctx, `SELECT c.oid, pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::pg_catalog.int8,
       pg_catalog.pg_table_size(c.oid)
FROM pg_catalog.pg_class c WHERE c.relkind = 'r' AND c.oid = ANY ('{`+strings.Join(oids, ",")+`}'::pg_catalog.oid[])`, func(row []string) error {
		t := byOID[row[0]]
		t.pages, t.bytes = pg.Number(row[1]), pg.Number(row[2])
		return nil
	})
	if err != nil {
		return fmt.Errorf("measure tables: %w", err)
	}
	return nil
}

// condition returns a condition for the selected relations: the user's, by the filter, and, in
// a backup of everything, the configuration tables of extensions.
func (d *database) condition(ctx context.Context) (string, error) {
	m, err := d.opts.Filter.Compile()
	if err != nil {
		return "", err
	}
	seen, err := visible(ctx, d.main, m.Tables, m.ExcludeTables)
	if err != nil {
		return "", err
	}
	user := []string{"x.objid IS NULL", "n.nspname <> 'information_schema'", `n.nspname OPERATOR(pg_catalog.!~) '^pg_'`}
	if len(m.Tables) > 0 {
		user = append(user, "("+matchTables(m.Tables, seen)+")")
	} else if len(m.Schemas) > 0 {
		user = append(user, "("+matchSchemas(m.Schemas)+")")
	}
	if len(m.ExcludeSchemas) > 0 {
		user = append(user, "NOT ("+matchSchemas(m.ExcludeSchemas)+")")
	}
	if len(m.ExcludeTables) > 0 {
		user = append(user, "NOT ("+matchTables(m.ExcludeTables, seen)+")")
	}
	all := "(" + strings.Join(user, " AND ") + ")"
	if d.opts.Filter.Selective() {
		return all, nil
	}
	extension := "e.id IS NOT NULL"
	if len(m.ExcludeSchemas) > 0 {
		extension += " AND NOT (" + matchSchemas(m.ExcludeSchemas) + ")"
	}
	if len(m.ExcludeTables) > 0 {
		extension += " AND NOT (" + matchTables(m.ExcludeTables, seen) + ")"
	}
	return "(" + all + " OR (" + extension + "))", nil
}

func matchSchemas(patterns []bulk.Pattern) string {
	var or []string
	for _, p := range patterns {
		or = append(or, "n.nspname OPERATOR(pg_catalog.~) "+pg.Literal(p.Name)+" COLLATE pg_catalog.default")
	}
	return strings.Join(or, " OR ")
}

// visible returns the relations that are visible in the user's search path, if a pattern has no
// schema: as in pg_dump, such a pattern selects only these. Only this query runs with the
// user's search path, and it uses no operators: an operator of a schema in the path would run
// with the rights of the backup.
func visible(ctx context.Context, session *pg.Session, patterns ...[]bulk.Pattern) (oids string, err error) {
	if !slices.ContainsFunc(slices.Concat(patterns...), func(p bulk.Pattern) bool { return p.Schema == "" }) {
		return "", nil
	}
	if err := session.Exec(ctx, "RESET search_path"); err != nil {
		return "", err
	}
	row, err := session.Row(ctx, "SELECT pg_catalog.array_agg(c.oid) FROM pg_catalog.pg_class c WHERE pg_catalog.pg_table_is_visible(c.oid)")
	if err != nil {
		return "", fmt.Errorf("list the tables of the search path: %w", err)
	}
	return row[0], session.Exec(ctx, "SET search_path = ''")
}

// matchTables returns the condition for tables that match patterns; a pattern without a schema
// selects only relations in seen.
func matchTables(patterns []bulk.Pattern, seen string) string {
	var or []string
	for _, p := range patterns {
		s := "c.relname OPERATOR(pg_catalog.~) " + pg.Literal(p.Name) + " COLLATE pg_catalog.default"
		if p.Schema != "" {
			s += " AND n.nspname OPERATOR(pg_catalog.~) " + pg.Literal(p.Schema) + " COLLATE pg_catalog.default"
		} else {
			s += " AND c.oid = ANY ('" + seen + "'::pg_catalog.oid[])"
		}
		or = append(or, s)
	}
	return "(" + strings.Join(or, ") OR (") + ")"
}

// dataless returns the tables whose rows --exclude-table-data leaves out.
func (d *database) dataless(ctx context.Context) (map[uint32]bool, error) {
	m, err := d.opts.Filter.Compile()
	if err != nil || len(m.ExcludeTableData) == 0 {
		return nil, err
	}
	seen, err := visible(ctx, d.main, m.ExcludeTableData)
	if err != nil {
		return nil, err
	}
	out := map[uint32]bool{}
	err = d.main.Query(ctx, `SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND (`+matchTables(m.ExcludeTableData, seen)+`)`, func(row []string) error {
		out[uint32(pg.Number(row[0]))] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list tables without data: %w", err)
	}
	return out, nil
}
