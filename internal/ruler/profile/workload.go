package profile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Workload is what an operation does: a script and the tables that it needs.
type Workload struct {
	Name   string
	Script *Script
	drop   func(context.Context) error
}

// workload is a built-in workload. In its texts {accounts} and the like stand for tables, and
// {rows} for their size.
type workload struct {
	about  string
	tables []string
	script string
}

var workloads = map[string]workload{
	"ping": {"one SELECT of a constant: no table, no plan to speak of", nil, "SELECT 1{dual}"},
	"point-select": {"one row by its key", []string{"accounts"}, `
-- param id = int(1, {rows})
SELECT balance FROM {accounts} WHERE id = :id`},
	"update": {"one row by its key, committed", []string{"accounts"}, `
-- param id = int(1, {rows})
-- param delta = int(-5000, 5000)
UPDATE {accounts} SET balance = balance + :delta WHERE id = :id`},
	"insert": {"one row, committed", []string{"events"}, `
-- param id = seq
-- param body = text(100)
INSERT INTO {events} (id, body) VALUES (:id, :body)`},
	"tpcb": {"the transaction of TPC-B: three updates, a read and an insert", []string{"accounts", "tellers", "branches", "history"}, `
-- param account = int(1, {rows})
-- param teller = int(1, {tellers_rows})
-- param branch = int(1, {branches_rows})
-- param delta = int(-5000, 5000)
{begin};
UPDATE {accounts} SET balance = balance + :delta WHERE id = :account;
SELECT balance FROM {accounts} WHERE id = :account;
UPDATE {tellers} SET balance = balance + :delta WHERE id = :teller;
UPDATE {branches} SET balance = balance + :delta WHERE id = :branch;
INSERT INTO {history} (teller, branch, account, delta) VALUES (:teller, :branch, :account, :delta);
COMMIT`},
}

// Workloads returns the built-in workloads with a description of each.
func Workloads() map[string]string {
	out := make(map[string]string)
	for name, w := range workloads {
		out[name] = w.about
	}
	return out
}

// rowsPerBranch is a tenth of TPC-B's ratio of accounts to branches, so that with a small table
// not all transactions wait for one row.
const rowsPerBranch = 10_000

// tableSizes returns how many rows each table starts with.
func tableSizes(rows int) map[string]int {
	branches := max(rows/rowsPerBranch, 1)
	return map[string]int{"accounts": rows, "tellers": 10 * branches, "branches": branches, "events": 0, "history": 0}
}

// ScriptWorkload makes a workload of the user's script, which uses existing tables.
func (t *Target) ScriptWorkload(name, text string) (*Workload, error) {
	s, err := ParseScript(t.Engine, text)
	if err != nil {
		return nil, fmt.Errorf("script %s: %w", name, err)
	}
	return &Workload{Name: name, Script: s, drop: func(context.Context) error { return nil }}, nil
}

// Prepare creates a built-in workload with tables of the given size in their own schema
// (PostgreSQL) or database (MySQL family). Drop removes them.
func (t *Target) Prepare(ctx context.Context, name string, rows int) (*Workload, error) {
	w, ok := workloads[name]
	if !ok {
		return nil, fmt.Errorf("no workload %q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(workloads)), ", "))
	}
	if rows < 1 {
		return nil, fmt.Errorf("%d rows: want 1 or more", rows)
	}
	out := &Workload{Name: name, drop: func(context.Context) error { return nil }}
	if t.Engine == EngineSleep {
		// The workload does not matter: every operation sleeps.
		var err error
		out.Script, err = ParseScript(t.Engine, "SELECT 1")
		return out, err
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	scratch := "weir_profile_" + hex.EncodeToString(random[:])
	pairs := []string{"{rows}", strconv.Itoa(rows), "{dual}", t.dual(), "{begin}", t.beginStatement()}
	for table, size := range tableSizes(rows) {
		pairs = append(pairs, "{"+table+"}", t.tableName(scratch, table), "{"+table+"_rows}", strconv.Itoa(size))
	}
	script, err := ParseScript(t.Engine, strings.NewReplacer(pairs...).Replace(w.script))
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", name, err)
	}
	out.Script = script
	if len(w.tables) == 0 {
		return out, nil
	}
	out.drop = func(ctx context.Context) error { return t.dropScratch(ctx, scratch, w.tables) }
	if err := t.createScratch(ctx, scratch, w.tables, tableSizes(rows)); err != nil {
		return nil, errors.Join(fmt.Errorf("make the tables of workload %s: %w", name, err), out.drop(ctx))
	}
	return out, nil
}

// Drop removes the tables of the workload.
func (w *Workload) Drop(ctx context.Context) error { return w.drop(ctx) }

func (t *Target) dual() string {
	if t.Engine == EngineOracle {
		return " FROM dual"
	}
	return ""
}

// beginStatement starts a transaction. Oracle has no such statement: the first statement starts
// one.
func (t *Target) beginStatement() string {
	if t.Engine == EngineOracle {
		return ""
	}
	return "BEGIN"
}

func (t *Target) tableName(scratch, table string) string {
	if t.Engine == EngineOracle {
		return scratch + "_" + table
	}
	return scratch + "." + table
}

// columns are the definitions of the tables.
var columns = map[string]string{
	"accounts": "id bigint PRIMARY KEY, balance bigint NOT NULL, filler char(84)",
	"tellers":  "id bigint PRIMARY KEY, balance bigint NOT NULL, filler char(84)",
	"branches": "id bigint PRIMARY KEY, balance bigint NOT NULL, filler char(84)",
	"history":  "teller bigint, branch bigint, account bigint, delta bigint",
	"events":   "id bigint PRIMARY KEY, body varchar(100)",
}

func (t *Target) createScratch(ctx context.Context, scratch string, tables []string, sizes map[string]int) error {
	if create := map[string]string{
		EnginePostgres: "CREATE SCHEMA ", EngineMariaDB: "CREATE DATABASE ", EngineMySQL: "CREATE DATABASE ",
	}[t.Engine]; create != "" {
		if _, err := t.admin.ExecContext(ctx, create+scratch); err != nil {
			return err
		}
	}
	for _, table := range tables {
		name, definition, options := t.tableName(scratch, table), columns[table], ""
		switch t.Engine {
		case EngineOracle:
			definition = strings.NewReplacer("bigint", "number(19)", "varchar(", "varchar2(").Replace(definition)
		case EngineMariaDB, EngineMySQL:
			options = " ENGINE=InnoDB DEFAULT CHARSET=latin1"
		}
		if _, err := t.admin.ExecContext(ctx, "CREATE TABLE "+name+" ("+definition+")"+options); err != nil {
			return err
		}
		if err := t.fillTable(ctx, name, sizes[table]); err != nil {
			return err
		}
	}
	if t.Engine == EnginePostgres {
		for _, table := range tables {
			if _, err := t.admin.ExecContext(ctx, "VACUUM ANALYZE "+t.tableName(scratch, table)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillTable inserts rows 1 to n. For engines without a function that generates rows, each
// statement inserts many.
func (t *Target) fillTable(ctx context.Context, name string, n int) error {
	if n == 0 {
		return nil
	}
	switch t.Engine {
	case EnginePostgres:
		_, err := t.admin.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s SELECT i, 0, '' FROM pg_catalog.generate_series(1, %d) i", name, n))
		return err
	case EngineOracle:
		_, err := t.admin.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s SELECT level, 0, ' ' FROM dual CONNECT BY level <= %d", name, n))
		return err
	}
	const batch = 5000
	for from := 1; from <= n; from += batch {
		var b strings.Builder
		b.WriteString("INSERT INTO " + name + " VALUES ")
		for id := from; id < min(from+batch, n+1); id++ {
			if id > from {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "(%d,0,'')", id)
		}
		if _, err := t.admin.ExecContext(ctx, b.String()); err != nil {
			return err
		}
	}
	return nil
}

func (t *Target) dropScratch(ctx context.Context, scratch string, tables []string) error {
	var statements []string
	switch t.Engine {
	case EnginePostgres:
		statements = []string{"DROP SCHEMA IF EXISTS " + scratch + " CASCADE"}
	case EngineOracle:
		for _, table := range tables {
			statements = append(statements, "DROP TABLE "+t.tableName(scratch, table))
		}
	default:
		statements = []string{"DROP DATABASE IF EXISTS " + scratch}
	}
	var errs []error
	for _, s := range statements {
		if _, err := t.admin.ExecContext(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("remove the workload's tables: %w", err))
		}
	}
	return errors.Join(errs...)
}
