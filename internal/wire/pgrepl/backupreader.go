package pgrepl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// backupReader reads the response to BASE_BACKUP: a result with the start position, one with
// the tablespaces, the COPY data, and a result with the end position.
type backupReader struct {
	conn   *Conn
	sink   BackupSink
	begun  func(Backup)
	backup Backup

	open   io.WriteCloser // nil between streams
	opened string         // its name
	sent   int            // archives begun so far
}

func (r *backupReader) run(ctx context.Context) error {
	results := 0
	for {
		typ, body, err := r.conn.peek(ctx)
		if err != nil {
			return r.broken(err)
		}
		switch typ {
		case pgwire.ServerCopyOutResponse:
			r.conn.take(body)
			if err := r.copyOut(ctx, results); err != nil {
				return r.broken(err)
			}
		case pgwire.ServerError:
			return errors.Join(r.conn.answer(ctx, func(Result) error { return pgwire.ErrMalformed }), r.closeStream())
		case pgwire.ServerRowDescription:
			if err := r.result(ctx, results); err != nil {
				return r.broken(err)
			}
			results++
		case pgwire.ServerCommandComplete:
			if results != 3 || r.sent != len(r.backup.Tablespaces) {
				return r.broken(fmt.Errorf("%d results and %d archives of %d: %w", results, r.sent, len(r.backup.Tablespaces), pgwire.ErrMalformed))
			}
			return r.conn.answer(ctx, func(Result) error { return nil })
		default:
			r.conn.take(body)
			if err := r.conn.aside(typ, body); err != nil {
				return r.broken(err)
			}
		}
	}
}

// broken ends the connection in the middle of the response. An error from the server does not
// break it, unless it is fatal.
func (r *backupReader) broken(err error) error {
	return errors.Join(r.conn.fail(err), r.closeStream())
}

func (r *backupReader) closeStream() error {
	if r.open == nil {
		return nil
	}
	w := r.open
	r.open = nil
	if err := w.Close(); err != nil {
		return fmt.Errorf("close %s: %w", r.opened, err)
	}
	return nil
}

// result reads the n-th result. Since PostgreSQL 15, each has a CommandComplete of its own.
func (r *backupReader) result(ctx context.Context, n int) error {
	var rows [][][]byte
	for {
		typ, body, err := r.conn.peek(ctx)
		if err != nil {
			return err
		}
		switch typ {
		case pgwire.ServerRowDescription:
			if rows != nil {
				return r.take(n, rows)
			}
			rows = [][][]byte{}
		case pgwire.ServerDataRow:
			row, err := pgwire.ParseDataRow(append([]byte(nil), body...), nil)
			if err != nil {
				return err
			}
			rows = append(rows, row)
		case pgwire.ServerCommandComplete:
			// That of the third one may be the whole command's.
			if n < 2 {
				r.conn.take(body)
			}
			return r.take(n, rows)
		case pgwire.ServerCopyOutResponse, pgwire.ServerError:
			return r.take(n, rows)
		default:
			if err := r.conn.aside(typ, body); err != nil {
				return err
			}
		}
		r.conn.take(body)
	}
}

// take parses the rows of the n-th result.
func (r *backupReader) take(n int, rows [][][]byte) error {
	switch n {
	case 0:
		return position(rows, &r.backup.Start, &r.backup.StartTimeline)
	case 1:
		for _, row := range rows {
			t, err := tablespace(row)
			if err != nil {
				return err
			}
			r.backup.Tablespaces = append(r.backup.Tablespaces, t)
		}
		if r.begun != nil {
			r.begun(r.backup)
		}
		return nil
	case 2:
		return position(rows, &r.backup.Stop, &r.backup.StopTimeline)
	}
	return fmt.Errorf("a fourth result: %w", pgwire.ErrMalformed)
}

// position parses a row with a log position and its timeline.
func position(rows [][][]byte, at *LSN, timeline *uint32) error {
	if len(rows) != 1 || len(rows[0]) < 2 {
		return fmt.Errorf("position of the backup: %w", pgwire.ErrMalformed)
	}
	var err error
	if *at, err = ParseLSN(string(rows[0][0])); err != nil {
		return err
	}
	*timeline, err = parseTimeline(rows[0][1])
	return err
}

func tablespace(row [][]byte) (t Tablespace, err error) {
	if len(row) < 3 {
		return t, fmt.Errorf("tablespace in %d columns: %w", len(row), pgwire.ErrMalformed)
	}
	if row[0] != nil {
		oid, err := strconv.ParseUint(string(row[0]), 10, 32)
		if err != nil {
			return t, fmt.Errorf("tablespace %q: %w", row[0], err)
		}
		t.OID, t.Location = uint32(oid), string(row[1])
	}
	if row[2] != nil {
		kib, err := strconv.ParseInt(string(row[2]), 10, 64)
		if err != nil || kib < 0 || kib > 1<<52 {
			return t, fmt.Errorf("tablespace of %q KiB: %w", row[2], pgwire.ErrMalformed)
		}
		t.Size = kib << 10
	}
	return t, nil
}

// copyOut reads one COPY: since PostgreSQL 15 the whole backup, before that one archive or the
// manifest.
func (r *backupReader) copyOut(ctx context.Context, results int) error {
	if results != 2 {
		return fmt.Errorf("a copy after %d results: %w", results, pgwire.ErrMalformed)
	}
	old := r.conn.version < 150000
	if old {
		if err := r.begin(r.sent < len(r.backup.Tablespaces)); err != nil {
			return err
		}
	}
	tar := r.open != nil && r.opened != manifestName
	for {
		typ, body, err := r.conn.next(ctx)
		if err != nil {
			return err
		}
		switch typ {
		case pgwire.ServerCopyData:
			if old {
				err = r.write(body)
			} else {
				err = r.part(body)
			}
		case pgwire.ServerCopyDone:
			if old && tar {
				// The end of the tar file, which these servers leave to the client.
				if err := r.write(make([]byte, 1024)); err != nil {
					return err
				}
			}
			return r.closeStream()
		default:
			err = r.conn.aside(typ, body)
		}
		if err != nil {
			return err
		}
	}
}

// Types of CopyData messages in a base backup since PostgreSQL 15.
const (
	partArchive  = 'n'
	partManifest = 'm'
	partData     = 'd'
	partProgress = 'p'
)

// part processes one CopyData message of a base backup.
func (r *backupReader) part(body []byte) error {
	kind, rest, err := parsePart(body)
	if err != nil {
		return err
	}
	switch kind {
	case partArchive:
		if r.sent >= len(r.backup.Tablespaces) {
			return fmt.Errorf("more archives than tablespaces: %w", pgwire.ErrMalformed)
		}
		return r.begin(true)
	case partManifest:
		return r.begin(false)
	case partData:
		return r.write(rest)
	}
	return nil // progress: how much the server has read
}

// parsePart checks the body of a CopyData message of a base backup. rest follows its type, and
// aliases it.
func parsePart(body []byte) (kind byte, rest []byte, err error) {
	if len(body) == 0 {
		return 0, nil, fmt.Errorf("empty part of a backup: %w", pgwire.ErrMalformed)
	}
	kind, rest = body[0], body[1:]
	ok := false
	switch kind {
	case partArchive: // its name and the location of its tablespace
		ok = bytes.Count(rest, []byte{0}) == 2 && rest[len(rest)-1] == 0
	case partManifest:
		ok = len(rest) == 0
	case partData:
		ok = true
	case partProgress:
		ok = len(rest) == 8 && int64(binary.BigEndian.Uint64(rest)) >= 0
	}
	if !ok {
		return 0, nil, fmt.Errorf("part %q of a backup, %d bytes: %w", kind, len(body), pgwire.ErrMalformed)
	}
	return kind, rest, nil
}

const manifestName = "backup_manifest"

// begin closes the previous stream and opens the next one.
func (r *backupReader) begin(archive bool) error {
	err := r.closeStream()
	if err != nil {
		return err
	}
	if archive {
		t := r.backup.Tablespaces[r.sent]
		r.sent++
		r.opened = t.Archive()
		r.open, err = r.sink.Archive(t)
	} else {
		r.opened = manifestName
		r.open, err = r.sink.Manifest()
	}
	if err != nil {
		r.open = nil
		return fmt.Errorf("open %s: %w", r.opened, err)
	}
	return nil
}

func (r *backupReader) write(data []byte) error {
	if r.open == nil {
		return fmt.Errorf("backup data outside any archive: %w", pgwire.ErrMalformed)
	}
	n, err := r.open.Write(data)
	r.backup.Bytes += int64(n)
	if err != nil {
		return fmt.Errorf("write %s: %w", r.opened, err)
	}
	return nil
}
