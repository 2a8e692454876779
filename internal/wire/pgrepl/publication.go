package pgrepl

import (
	"context"
	"fmt"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// codeInsufficientPrivilege and codeDuplicateObject are SQLSTATEs.
const (
	codeInsufficientPrivilege = "42501"
	codeDuplicateObject       = "42710"
)

// publication describes a publication with regard to one table.
type publication struct {
	exists   bool
	inserts  bool
	hasTable bool
	filtered bool // has a row filter or a column list for the table
	empty    bool // has no tables (they were dropped)
	owned    bool // by the session's role
}

// EnsurePublication creates a publication of the inserts into one table, unless one with that
// name exists that publishes them; created says which. If the existing one is empty because its
// table was dropped, it gets the table that has the name now. Any other publication that does
// not publish the table is an error, and is not changed. Rows of a partitioned table are
// published under the name of the root.
//
// It needs mode Logical or SQL, the CREATE privilege on the database, and ownership of the
// table. The error says what is missing.
func EnsurePublication(ctx context.Context, c *Conn, name string, table Table) (created bool, err error) {
	if created, err = ensurePublication(ctx, c, name, table); err != nil {
		return false, fmt.Errorf("publish inserts into %s: %w", table, err)
	}
	return created, nil
}

func ensurePublication(ctx context.Context, c *Conn, name string, table Table) (created bool, err error) {
	p, err := c.publication(ctx, name, table)
	if err != nil {
		return false, err
	}
	if !p.exists {
		options := "publish = 'insert'"
		if c.version >= 130000 {
			options += ", publish_via_partition_root = true"
		}
		_, err := c.Query(ctx, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE ONLY %s WITH (%s)", ident(name), table, options))
		switch pgwire.CodeOf(err) {
		case "":
			return err == nil, err
		case codeDuplicateObject: // another session was faster
			if p, err = c.publication(ctx, name, table); err != nil {
				return false, err
			}
		case codeInsufficientPrivilege:
			return false, fmt.Errorf("create publication %s: %w (it takes CREATE on the database and ownership of the table: "+
				"let the table's owner run CREATE PUBLICATION %s FOR TABLE ONLY %s WITH (%s))", ident(name), err, ident(name), table, options)
		default:
			return false, fmt.Errorf("create publication %s: %w", ident(name), err)
		}
	}
	if p.bereft() {
		_, err := c.Query(ctx, fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE ONLY %s", ident(name), table))
		if err != nil && pgwire.CodeOf(err) != codeDuplicateObject { // another session was faster
			return false, fmt.Errorf("put the table into publication %s, which has lost its own: %w", ident(name), err)
		}
		return false, nil
	}
	if reason := p.lacks(); reason != "" {
		return false, fmt.Errorf("publication %s exists and %s: alter it, or choose another name", ident(name), reason)
	}
	return false, nil
}

// lacks returns why an existing publication does not send every inserted row, or "".
func (p publication) lacks() string {
	switch {
	case !p.hasTable:
		return "does not have the table"
	case !p.inserts:
		return "does not publish inserts"
	case p.filtered:
		return "leaves out rows or columns of the table"
	}
	return ""
}

// bereft reports whether a publication of inserts has no table any more: its table was dropped,
// and may have been created again.
func (p publication) bereft() bool { return p.exists && p.empty && p.inserts }

// publication looks up the publication in the catalog.
func (c *Conn) publication(ctx context.Context, name string, table Table) (publication, error) {
	filtered := "false"
	if c.version >= 150000 {
		filtered = `EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
			AND r.prrelid = t.oid AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL))`
	}
	schemas := ""
	if c.version >= 150000 {
		schemas = " AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid)"
	}
	// pg_publication_tables lists the tables under the names under which their changes are
	// sent: for a partitioned table, its own or those of its partitions.
	sql := fmt.Sprintf(`SELECT p.pubinsert, %[1]s,
		EXISTS (SELECT 1 FROM pg_catalog.pg_publication_tables l
			WHERE l.pubname = p.pubname AND l.schemaname = %[2]s AND l.tablename = %[3]s),
		NOT p.puballtables AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid)%[5]s,
		pg_catalog.pg_has_role(p.pubowner, 'USAGE')
		FROM pg_catalog.pg_publication p
		LEFT JOIN (pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace)
			ON n.nspname = %[2]s AND t.relname = %[3]s
		WHERE p.pubname = %[4]s`, filtered, literal(table.Namespace), literal(table.Name), literal(name), schemas)
	results, err := c.Query(ctx, sql)
	if err != nil {
		return publication{}, fmt.Errorf("look up publication %s: %w", ident(name), err)
	}
	if len(results) != 1 || len(results[0].Rows) == 0 {
		return publication{}, nil
	}
	is := func(i int) bool { return string(results[0].Rows[0][i]) == "t" }
	return publication{exists: true, inserts: is(0), filtered: is(1), hasTable: is(2), empty: is(3), owned: is(4)}, nil
}
