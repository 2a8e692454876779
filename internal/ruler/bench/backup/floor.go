package backupbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/backup"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/fastzstd"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// The hidden verbs of the floor.
const (
	rowsVerb = "copy-rows"
	readVerb = "read-rows"
)

// floorSide is the name of the floor's side.
const floorSide = "floor"

// floorWay only copies rows: the lower bound for a backup of them.
func floorWay(binary string, jobs int) way {
	return way{
		name: floorSide, only: dumps,
		dump: func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{{binary, "bench", "backup", rowsVerb, db.dsn, dir, "--jobs=" + strconv.Itoa(jobs)}}, env: db.env}
		},
		check: func(dir string) pipeline { return command(binary, "bench", "backup", readVerb, dir) },
	}
}

// sides are the ways that are compared with each other.
func (r *rig) sides() []way {
	ways := fitting(r.ways, r.o.Sides)
	if r.o.Floor {
		ways = append(ways[:len(ways):len(ways)], floorWay(r.o.Binary, r.jobs))
	}
	return ways
}

// rowPart is a table, or a range of its pages.
type rowPart struct {
	name  string // of its file
	sql   string
	bytes int64
}

// copyRows copies the rows of a database to files below dir, with that many sessions: with
// weir's sessions, encoder, order, and ranges of large tables of chunk bytes each, 0 for weir's
// default. It takes no snapshot and no lock, reads no definitions, computes no checksums and
// flushes nothing.
func copyRows(ctx context.Context, dsn, dir string, jobs int, chunk int64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("copy rows: %w", err)
		}
	}()
	cfg, err := pgwire.ParseDSN(dsn)
	if err != nil {
		return err
	}
	first, err := pg.Connect(ctx, cfg, "")
	if err != nil {
		return err
	}
	parts, err := rowParts(ctx, first, backup.Options{Jobs: jobs, ChunkBytes: chunk})
	if err != nil {
		return errors.Join(err, first.Close())
	}
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for n := range jobs {
		g.Go(func() (err error) {
			s := first
			if n > 0 {
				if s, err = pg.Connect(ctx, cfg, ""); err != nil {
					return err
				}
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			encoder := fastzstd.New(io.Discard)
			for i := next.Add(1) - 1; i < int64(len(parts)); i = next.Add(1) - 1 {
				if err := parts[i].copy(ctx, s, encoder, dir); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// rowParts lists what to copy, the largest first.
func rowParts(ctx context.Context, s *pg.Session, o backup.Options) ([]rowPart, error) {
	type table struct {
		name         string
		pages, bytes int64
	}
	var tables []table
	var total int64
	err := s.Query(ctx, `SELECT relname, pg_catalog.pg_relation_size(oid) / pg_catalog.current_setting('block_size')::pg_catalog.int8, pg_catalog.pg_table_size(oid)
		FROM pg_catalog.pg_class WHERE relkind = 'r' AND relnamespace = 'public'::pg_catalog.regnamespace`, func(row []string) error {
		t := table{row[0], pg.Number(row[1]), pg.Number(row[2])}
		tables = append(tables, t)
		total += t.bytes
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	chunk := o.ChunkFor(total)
	var parts []rowPart
	for _, t := range tables {
		name := pg.Qualified("public", t.name)
		if t.pages < 2 || t.bytes <= chunk+chunk/2 {
			parts = append(parts, rowPart{t.name, "COPY " + name + " TO STDOUT", t.bytes})
			continue
		}
		pages := max(1, int64(float64(t.pages)*float64(chunk)/float64(t.bytes)))
		n := (t.pages + pages - 1) / pages
		for i := range n {
			sql := fmt.Sprintf("COPY (SELECT * FROM ONLY %s WHERE ctid >= '(%d,0)' AND ctid < '(%d,0)') TO STDOUT", name, i*pages, (i+1)*pages)
			parts = append(parts, rowPart{fmt.Sprintf("%s.%d", t.name, i+1), sql, t.bytes / n})
		}
	}
	slices.SortStableFunc(parts, func(a, b rowPart) int { return cmp.Compare(b.bytes, a.bytes) })
	return parts, nil
}

func (p rowPart) copy(ctx context.Context, s *pg.Session, encoder *fastzstd.Encoder, dir string) (err error) {
	f, err := os.Create(filepath.Join(dir, p.name+".zst"))
	if err != nil {
		return fmt.Errorf("make a file of rows: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	encoder.Reset(f)
	_, err = s.CopyOut(ctx, p.sql, func(b []byte) error {
		_, err := encoder.Write(b)
		return err
	})
	if err == nil {
		err = encoder.Close()
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", p.name, err)
	}
	return nil
}

// readRows reads what copyRows has written, and writes it to w.
func readRows(dir string, w io.Writer) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.zst"))
	if err != nil || len(names) == 0 {
		return errors.Join(err, fmt.Errorf("read rows: %s has none", dir))
	}
	for _, name := range names {
		if err := readFile(name, w); err != nil {
			return fmt.Errorf("read rows of %s: %w", strings.TrimSuffix(filepath.Base(name), ".zst"), err)
		}
	}
	return nil
}

func readFile(name string, w io.Writer) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	d, err := zstd.NewReader(f)
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = io.Copy(w, d)
	return err
}

func floorCommands() []*cobra.Command {
	jobs := 0
	rows := &cobra.Command{
		Use: rowsVerb + " DSN DIR", Short: "Only copy the rows of a PostgreSQL database to files",
		Hidden: true, // a part of weir bench backup --floor
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return copyRows(cmd.Context(), args[0], args[1], jobs, 0)
		},
	}
	rows.Flags().IntVar(&jobs, "jobs", 1, "sessions")
	return []*cobra.Command{rows, {
		Use: readVerb + " DIR", Short: "Read what " + rowsVerb + " has written",
		Hidden: true, // a part of weir bench backup --floor
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return readRows(args[0], io.Discard) },
	}}
}
