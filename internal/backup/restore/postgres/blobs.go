package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// blobs returns the job that creates the large objects of a chunk, in one transaction.
func (l loader) blobs(c archive.Chunk) bulk.Job {
	return bulk.Job{ID: c.Path, Size: c.PlainBytes, Do: func(ctx context.Context, n int) error {
		if l.journal.Has(c.Path) {
			return nil
		}
		end := l.opts.Progress.Begin("large objects")
		defer end()
		s, err := l.workers[n].admin(ctx)
		if err != nil {
			return err
		}
		m := blobMaker{loader: l, session: s, chunk: c}
		for {
			m.failures, m.without = nil, false
			failed := m.run(ctx)
			if failed == nil {
				l.opts.Progress.Add(c.PlainBytes, 0)
				for _, err := range m.failures {
					if err := l.failed(err); err != nil {
						return err
					}
				}
				return nil
			}
			if s.Broken() == nil {
				if err := s.Exec(ctx, "ROLLBACK"); err != nil {
					return err
				}
			}
			switch {
			case l.sandbox.provide(ctx, failed):
			case aboutRole(failed) && !m.careful && !l.opts.Stop:
				m.careful = true
			default:
				return l.failed(failed)
			}
		}
	}}
}

// aboutRole reports whether an error says that a role does not exist, or that the login must
// not act for it.
func aboutRole(err error) bool {
	code := pg.ErrorCode(err) // SET SESSION AUTHORIZATION has a code of its own for a missing role
	return code == "42704" || code == "42501" || code == "22023"
}

// blobMaker creates the large objects of one chunk.
type blobMaker struct {
	loader
	session *pg.Session
	chunk   archive.Chunk

	// careful lets owners and privileges fail one by one, because the others, and the contents
	// of the objects, do not depend on them. It costs a savepoint for each.
	careful  bool
	failures []error
	without  bool // the role that grants the next privilege is missing
}

func (m *blobMaker) run(ctx context.Context) error {
	if err := m.session.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if err := m.statements(ctx, m.chunk.Path, func(sql string) error { return m.make(ctx, sql) }); err != nil {
		return err
	}
	return m.session.Exec(ctx, note(m.chunk.Path)+"; COMMIT")
}

func (m *blobMaker) make(ctx context.Context, sql string) error {
	owner := strings.HasPrefix(sql, "ALTER LARGE OBJECT ")
	by := strings.HasPrefix(sql, "SET SESSION AUTHORIZATION ")
	reset := strings.HasPrefix(sql, "RESET SESSION AUTHORIZATION")
	right := strings.HasPrefix(sql, "GRANT ") || strings.HasPrefix(sql, "REVOKE ") || by || reset
	if owner && m.opts.NoOwner || right && m.opts.NoPrivileges {
		return nil
	}
	what := "large objects (" + m.chunk.Path + ")"
	if !m.careful || !owner && !right {
		if err := m.session.Exec(ctx, sql); err != nil {
			return &restore.ObjectError{Database: m.target, Object: what, Statement: restore.First(sql, 120), Chunk: m.chunk.Path, Err: err}
		}
		return nil
	}
	if right && m.without { // it must not be granted by another role
		m.without = !reset
		if !reset {
			m.fail("rights to "+what, sql, errors.New("left out, because the role that grants it is not available"))
		}
		return nil
	}
	err := m.session.Exec(ctx, "SAVEPOINT weir; "+sql+"; RELEASE SAVEPOINT weir")
	if err == nil {
		return nil
	}
	if !aboutRole(err) || m.session.Broken() != nil {
		return &restore.ObjectError{Database: m.target, Object: what, Statement: restore.First(sql, 120), Chunk: m.chunk.Path, Err: err}
	}
	if err := m.session.Exec(ctx, "ROLLBACK TO SAVEPOINT weir; RELEASE SAVEPOINT weir"); err != nil {
		return err
	}
	kind := "rights to "
	if owner {
		kind = "owner of "
	}
	m.without = by
	m.fail(kind+what, sql, err)
	return nil
}

func (m *blobMaker) fail(object, sql string, err error) {
	m.failures = append(m.failures, &restore.ObjectError{
		Database: m.target, Object: object, Statement: restore.First(sql, 120), Rest: sql + ";", Err: err,
	})
}

// errEnough ends the reading of a chunk when the rest is not needed.
var errEnough = errors.New("no more is needed")

// cleanBlobs drops the large objects that the backup contains.
func cleanBlobs(ctx context.Context, d *database) error {
	for _, c := range d.blobs() {
		var oids []string
		err := d.statements(ctx, c.Path, func(sql string) error {
			oid, ok := strings.CutPrefix(sql, "SELECT pg_catalog.lo_create(")
			if !ok { // they come first
				return errEnough
			}
			oids = append(oids, strings.TrimSuffix(oid, ")"))
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
		if len(oids) == 0 {
			continue
		}
		err = d.main.Exec(ctx, "SELECT pg_catalog.lo_unlink(oid) FROM pg_catalog.pg_largeobject_metadata WHERE oid IN ("+strings.Join(oids, ",")+")")
		if err != nil {
			return fmt.Errorf("drop large objects: %w", err)
		}
	}
	return nil
}
