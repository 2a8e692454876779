package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/guard"
	dump "github.com/weirdb/weir/internal/backup/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

const crewSQL = `CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT g, md5(g::text) FROM generate_series(1, 12000) g;
CREATE INDEX orders_note ON orders (note);
CREATE TABLE items AS SELECT g AS a, md5(g::text) AS b FROM generate_series(1, 12000) g;`

// TestWorkersThatComeAndGo backs up and restores with a number of workers that
// changes all the time: what is restored is what there was.
func TestWorkersThatComeAndGo(t *testing.T) {
	r := newRig(t, server(t), crewSQL)
	adapt := bulk.Adapt{Min: 1, Max: 5, Idle: time.Nanosecond}
	result := r.mustBackup(backup.Options{Checksums: true, ChunkBytes: backup.MinChunkBytes, Jobs: 2, Adapt: adapt})
	if len(result.Workers) != 1 {
		t.Fatalf("metrics of workers: %+v", result.Workers)
	}
	if w := result.Workers[0]; w.Name != r.db || w.Least != 1 || w.Start != 2 || w.Most != 5 || w.Peak < 1 || w.Peak > 5 || w.Completed < 20 {
		t.Errorf("metrics of workers: %+v", w)
	}
	if p := result.Pipeline; p.Chunks < 20 || p.Read.Input <= 0 || p.Compress.Total() <= 0 || p.Store.Busy <= 0 {
		t.Errorf("pipeline: %+v", p)
	}
	want := r.state(r.db)
	r.alike(want, r.restored(restore.Options{Verify: restore.VerifyRows, Jobs: 1, Adapt: adapt}))
	// More jobs than there may be are as many as there may be, in every phase.
	r.alike(want, r.restored(restore.Options{Verify: restore.VerifyRows, Jobs: 6, Adapt: bulk.Adapt{Max: 1}}))
}

// panicking is a storage that panics when a chunk of a table begins and another one is
// complete, so that there is something to resume.
type panicking struct {
	archive.Storage
	table string
}

func (p panicking) Create(ctx context.Context, name string) (archive.ObjectWriter, error) {
	if strings.Contains(name, p.table) {
		for complete := false; !complete && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			for o, err := range p.List(ctx, "x", false) {
				complete = complete || err == nil && strings.Contains(o.Name, "journal-") && o.Size > 0
			}
		}
		panic("nobody expects this")
	}
	return p.Storage.Create(ctx, name)
}

// TestJobThatPanicsFailsItsBackup: the backup ends in an orderly way, names table and
// chunk, and is resumed.
func TestJobThatPanicsFailsItsBackup(t *testing.T) {
	r := newRig(t, server(t), "CREATE TABLE orders (id int PRIMARY KEY, note text); INSERT INTO orders VALUES (1, 'x'); CREATE TABLE items AS SELECT 1 AS a")
	w, err := archive.Create(t.Context(), archive.NewRepository(panicking{r.repo.Storage(), "public.items"}), archive.Options{ID: "x", Parallel: 4})
	if err != nil {
		t.Fatal(err)
	}
	_, err = dump.Run(t.Context(), backup.Options{DSN: r.p.DSN(r.db), Jobs: 1, Checksums: true}, w)
	var p *guard.PanicError
	if !errors.As(err, &p) || p.Job != "db/"+r.db+"/data/public.items/0001.copy" || !strings.Contains(err.Error(), "nobody expects this") {
		t.Fatalf("error: %v", err)
	}
	entries, err := archive.List(t.Context(), r.repo, time.Now())
	if err != nil || len(entries) != 1 || entries[0].State != archive.Incomplete {
		t.Fatalf("what is left: %+v, %v", entries, err)
	}
	if w, err = archive.Create(t.Context(), r.repo, archive.Options{ID: "x", Parallel: 4, Resume: true}); err != nil {
		t.Fatal(err)
	}
	if _, err = dump.Run(t.Context(), backup.Options{DSN: r.p.DSN(r.db), Jobs: 2, Checksums: true}, w); err != nil {
		t.Fatal(err)
	}
	r.alike(r.state(r.db), r.restored(restore.Options{Verify: restore.VerifyRows}))
}

// TestIndexThatTakesTooLong has the server give up one index, which is a failure of
// that index alone.
func TestIndexThatTakesTooLong(t *testing.T) {
	r := newRig(t, server(t), `CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
  IF pg_catalog.current_setting('application_name') = 'weir' THEN PERFORM pg_catalog.pg_sleep(3600); END IF; RETURN $1; END $$;
CREATE TABLE t AS SELECT 1 AS a; CREATE INDEX t_slow ON t (public.slow(a)); CREATE INDEX t_quick ON t (a);`)
	r.mustBackup(backup.Options{Checksums: true})
	target := r.db + "_copy"
	r.dropAfter(target)
	result, err := r.restore(restore.Options{Create: true, Target: target, IndexTimeout: time.Second})
	if err == nil || result == nil || !result.Ended || len(result.Failed) != 1 || result.Failed[0].Object != "INDEX public.t_slow" ||
		!strings.Contains(result.Failed[0].Error(), "statement timeout") || !strings.Contains(result.Failed[0].Rest, "CREATE INDEX t_slow") {
		t.Fatalf("%v, %+v", err, result)
	}
	if got := r.psql(target, "SELECT string_agg(indexrelname, ',') FROM pg_stat_user_indexes"); got != "t_quick" {
		t.Errorf("indexes that are there: %q", got)
	}
}

// TestSettingsOfARestore has an index hold what the settings of the session are that
// built it.
func TestSettingsOfARestore(t *testing.T) {
	r := newRig(t, server(t), `CREATE FUNCTION settled() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT pg_catalog.current_setting('random_page_cost') || ' '
  || pg_catalog.current_setting('max_parallel_maintenance_workers') || ' ' || pg_catalog.current_setting('work_mem') || ' ' || pg_catalog.current_setting('statement_timeout') $$;
CREATE TABLE s (a text); CREATE UNIQUE INDEX s_settled ON s ((a || public.settled())); INSERT INTO s VALUES ('as: ');`)
	r.mustBackup(backup.Options{Checksums: true})
	workers := 3
	target := r.restored(restore.Options{
		Jobs: 1, IndexWorkers: &workers, IndexTimeout: time.Hour, Tuning: []string{"random_page_cost=1.25", "work_mem=7MB"},
	})
	got := r.psql(target, `SET enable_seqscan = off; SET random_page_cost = 1.25; SET work_mem = '7MB'; SET statement_timeout = '1h';
SET max_parallel_maintenance_workers = 3; SELECT count(*) FROM s WHERE a || public.settled() = 'as: 1.25 3 7MB 1h';`)
	if got != "1" {
		t.Errorf("the index holds something else: found %q rows by it", got)
	}
}

func TestSettingsThatARestoreRefuses(t *testing.T) {
	for _, c := range []struct {
		o    restore.Options
		want string
	}{
		{restore.Options{Tuning: []string{"search_path=x"}}, "--set \"search_path=x\""},
		{restore.Options{Tuning: []string{"work_mem"}}, "--set \"work_mem\""},
		{restore.Options{Tuning: []string{"work_mem=1MB", "work_mem=2MB"}}, "--set \"work_mem=2MB\""},
		{restore.Options{IndexTimeout: -1}, "--index-timeout"},
		{restore.Options{IndexWorkers: new(int), Adapt: bulk.Adapt{Min: 3, Max: 2}}, "--min-jobs 3"},
		{restore.Options{Adapt: bulk.Adapt{Min: 3}}, "--max-jobs"},
		{restore.Options{Adapt: bulk.Adapt{Max: -1}}, "--max-jobs -1"},
		{restore.Options{Adapt: bulk.Adapt{Max: 2, Idle: -1}}, "--idle-time"},
	} {
		c.o.DSN = "postgres://db/shop"
		if err := c.o.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
}
