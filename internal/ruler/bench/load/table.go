package load

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Protocol is a protocol of database servers in which the load is driven. The tables of a
// workload are made and read through a pool of database/sql.
type Protocol struct {
	// Open opens a pool of up to n connections.
	Open func(dsn string, n int) (*sql.DB, error)
	// Tables lists the statements that recreate and fill the tables of a workload.
	Tables func(Workload) ([]string, error)
	// Dialer returns how the clients of a run log in.
	Dialer func(Config) (Dial, error)
	// Seeds is how many rows a guarded table of inserts has from the start: value -1 to -Seeds,
	// created_at SeedTime.
	Seeds int64
}

// SeedTime is created_at in the rows that a guarded table has from the start.
const SeedTime = -1

// Run opens all connections, drives them, closes them and returns the outcome. If ctx is done,
// the run ends early with an error. The tables must exist: see Setup.
func (p *Protocol) Run(ctx context.Context, c Config) (*Outcome, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dial, err := p.Dialer(c)
	if err != nil {
		return nil, err
	}
	return Run(ctx, c, dial)
}

// over calls f with a connection of its own to the server.
func (p *Protocol) over(dsn string, f func(*sql.DB) error) error {
	db, err := p.Open(dsn, 1)
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.Close())
}

// Setup recreates the workload's tables.
func (p *Protocol) Setup(ctx context.Context, dsn string, w Workload) error {
	statements, err := p.Tables(w)
	if err != nil {
		return err
	}
	return p.over(dsn, func(db *sql.DB) error {
		for _, text := range statements {
			if _, err := db.ExecContext(ctx, text); err != nil {
				return fmt.Errorf("set up %.60q: %w", text, err)
			}
		}
		return nil
	})
}

// Count returns how many updates the table of a workload has. The DSN must bypass what is being
// tested.
func (p *Protocol) Count(ctx context.Context, dsn string, w Update) (sum int64, err error) {
	err = p.over(dsn, func(db *sql.DB) error {
		if err := db.QueryRowContext(ctx, "SELECT SUM(value) FROM "+w.TableName()).Scan(&sum); err != nil {
			return fmt.Errorf("read %s to verify: %w", w.TableName(), err)
		}
		return nil
	})
	return sum, err
}

// numbered is a client that was told the id of each row that it inserted.
type numbered interface {
	// InsertIDs returns the ids by the operations' numbers, 0 for an operation that failed.
	InsertIDs() []uint64
}

// Verify reads the whole table and compares it with the clients of the run: each acknowledged
// row exists once, with the client's own values, and under the id that the client was told, if
// the protocol tells one. If two clients were told the same id, one row has another id than its
// client was told. The DSN must bypass what is being tested.
func (p *Protocol) Verify(ctx context.Context, dsn string, w Insert, o *Outcome) (audit *Audit, err error) {
	err = p.over(dsn, func(db *sql.DB) error {
		audit, err = p.audit(ctx, db, w, o)
		if err != nil {
			return fmt.Errorf("read %s to verify: %w", w.TableName(), err)
		}
		return nil
	})
	return audit, err
}

func (p *Protocol) audit(ctx context.Context, db *sql.DB, w Insert, o *Outcome) (*Audit, error) {
	told := make([][]uint64, len(o.Clients))
	for i, c := range o.Clients {
		if c, ok := c.(numbered); ok {
			told[i] = c.InsertIDs()
		}
	}
	rows, err := db.QueryContext(ctx, "SELECT id, value, created_at FROM "+w.TableName())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	check := NewChecker(w, o.Ledger)
	var seeds, client, n int64
	var id uint64
	for rows.Next() {
		if err := rows.Scan(&id, &client, &n); err != nil {
			return nil, err
		}
		if w.HasGuard() && n == SeedTime && client < 0 && client >= -p.Seeds {
			seeds++ // its unique key allows it once
			continue
		}
		if !check.Row(client, n) {
			continue
		}
		// An operation that was never answered has no id to compare.
		if ids := told[client]; n < int64(len(ids)) && ids[n] != 0 && ids[n] != id {
			check.WrongID(client, n, ids[n], id)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if w.HasGuard() && seeds != p.Seeds {
		return nil, fmt.Errorf("%d of the %d initial rows are left", seeds, p.Seeds)
	}
	return check.Finish(), nil
}
