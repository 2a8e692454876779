package backupbench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
)

// source is a filled database and its content.
type source struct {
	size  Size
	plain int64 // bytes of its rows as text
	sums  sums
}

// able leaves out the optional ways that do not work, by trying them on a database without
// tables.
func (r *rig) able(ctx context.Context, ways []way) ([]way, error) {
	var out []way
	for _, w := range ways {
		if w.optional {
			if err := r.engine.recreate(ctx, sourceDatabase); err != nil {
				return nil, err
			}
			err := r.intoEmpty(w, func(dir string) error {
				_, err := run(ctx, w.dump(r.engine.place(sourceDatabase), dir))
				return err
			})
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				r.Leave("%s: %v", w.name, err)
				continue
			}
		}
		out = append(out, w)
	}
	return out, nil
}

// dirOf is the directory with the files of a way's archive.
func (r *rig) dirOf(w way) string { return archiveDir(cmp.Or(w.root, r.archives()), w.name) }

// intoEmpty gives f an empty directory for an archive of a way, or no directory if a server
// makes it. If f fails, the directory is removed.
func (r *rig) intoEmpty(w way, f func(dir string) error) error {
	dir := r.dirOf(w)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("empty archive: %w", err)
	}
	if w.root == "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make archive: %w", err)
		}
	}
	if err := f(dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

// source returns the source database of a size, and creates it if needed.
func (r *rig) source(ctx context.Context, size Size) (*source, error) {
	if r.src != nil && r.src.size == size {
		return r.src, nil
	}
	var err error
	r.src, err = r.fill(ctx, size)
	return r.src, err
}

// fill creates the source database.
func (r *rig) fill(ctx context.Context, size Size) (*source, error) {
	shape, err := backupdata.ByName(size.Shape)
	if err != nil {
		return nil, err
	}
	r.o.Say("Fill a database: %s, %s", shape.About, sizeText(size.Bytes))
	if err := r.engine.recreate(ctx, sourceDatabase); err != nil {
		return nil, err
	}
	if err := r.engine.load(ctx, sourceDatabase, shape.Tables(size.Bytes), r.o.Seed); err != nil {
		return nil, err
	}
	src := &source{size: size, plain: size.Bytes}
	if src.sums, err = r.engine.sums(ctx, sourceDatabase); err != nil {
		return nil, err
	}
	// Archives of another source are useless now.
	if err := os.RemoveAll(r.archives()); err != nil {
		return nil, fmt.Errorf("remove archives: %w", err)
	}
	if r.bucket != nil {
		old, err := filepath.Glob(filepath.Join(r.bucket.root, "weir*"))
		for _, dir := range old {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		if err != nil {
			return nil, fmt.Errorf("remove archives: %w", err)
		}
	}
	return src, nil
}

// compared says what experiments with a prefix compare.
var compared = map[string]string{"profiles-": "by weir's profiles", "jobs-": "by weir's jobs", "storage-": "into a directory and an S3 server of this machine", "adaptive-": "with an adaptive number of jobs", "settings-": "by settings of its sessions"}

// sideBySide backs up a source by all ways, or restores their archives.
func (r *rig) sideBySide(ctx context.Context, src *source, prefix, kind string, ways []way) error {
	e := r.experiment(prefix+kind, src)
	verb := map[string]string{dumps: "Backup", restores: "Restore"}[kind]
	e.Title = fmt.Sprintf("%s of %s, %s", verb, src.size.Shape, sizeText(src.size.Bytes))
	if by := compared[prefix]; by != "" {
		e.Title += ", " + by
	}
	if prefix == "settings-" && !r.o.Plan.Slow {
		e.Rounds = min(e.Rounds, 2) // there are many sides, and restores take longest
	}
	for _, w := range of(ways, kind) {
		e.Sides = append(e.Sides, bench.Side{
			Name: w.named(kind), Factors: map[string]string{"way": w.describe(kind)},
			Run: func(ctx context.Context, _ int) (bench.Sample, error) {
				if kind == dumps {
					return r.dump(ctx, w, src)
				}
				return r.restore(ctx, w, src)
			},
		})
	}
	if len(e.Sides) == 0 {
		return fmt.Errorf("%s: no side matches --side %s", e.Name, strings.Join(r.o.Sides, ", "))
	}
	_, err := r.Measure(ctx, e, r.env, r.o.Out)
	return err
}

// experiment is the common part of the experiments with whole programs.
func (r *rig) experiment(kind string, src *source) bench.Experiment {
	return bench.Experiment{Description: bench.Description{
		Name:   kind + "-" + src.size.Shape,
		Rounds: r.o.Plan.Rounds,
		Factors: map[string]string{
			"engine": string(r.o.Engine), "shape": src.size.Shape, "bytes": strconv.FormatInt(src.size.Bytes, 10),
			"seed": strconv.FormatUint(r.o.Seed, 10), "jobs": strconv.Itoa(r.jobs),
		},
	}}
}

// dump is a round of a backup. The archive is read back by the tool's own check and stays until
// the next round of the same way.
func (r *rig) dump(ctx context.Context, w way, src *source) (s bench.Sample, err error) {
	err = r.intoEmpty(w, func(dir string) error {
		if err := r.engine.settle(ctx); err != nil {
			return err
		}
		if s, err = r.taken(ctx, w.dump(r.engine.place(sourceDatabase), dir), src, w.tells); err != nil {
			return err
		}
		// Some tools flush what they write and some do not: all are timed until the archive is
		// on disk.
		began := time.Now()
		if err := flushFiles(dir); err != nil {
			return err
		}
		s.Seconds += time.Since(began).Seconds()
		if moves.Of(s.Parts).StoredBytes, err = diskBytes(dir); err != nil {
			return err
		}
		if w.check != nil {
			if _, err := run(ctx, w.check(dir)); err != nil {
				return fmt.Errorf("check of the archive: %w", err)
			}
			moves.Of(s.Parts).Verified = "archive read back by its tool"
		} else if w.restore != nil {
			moves.Of(s.Parts).Verified = "by restoring the last one"
		}
		return nil
	})
	return s, err
}

// restore is a round of a restore, into a new database, whose content is then compared with the
// source.
func (r *rig) restore(ctx context.Context, w way, src *source) (s bench.Sample, err error) {
	dir := r.dirOf(w)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // in a resumed run
		if _, err := r.dump(ctx, w, src); err != nil {
			return s, err
		}
	}
	if err := r.engine.recreate(ctx, copyDatabase); err != nil {
		return s, err
	}
	if err := r.engine.settle(ctx); err != nil {
		return s, err
	}
	if s, err = r.taken(ctx, w.restore(r.engine.place(copyDatabase), dir), src, w.tells); err != nil {
		return s, err
	}
	got, err := r.engine.sums(ctx, copyDatabase)
	if err != nil {
		return s, err
	}
	if d := src.sums.differs(got); d != "" {
		return s, fmt.Errorf("the restored database differs from its source: %s", d)
	}
	moves.Of(s.Parts).Verified, moves.Of(s.Parts).Rows = "rows by checksums, indexes and constraints by their number", got.rows
	return s, r.engine.drop(ctx, copyDatabase)
}

// taken runs a pipeline and reads what it and the server used.
func (r *rig) taken(ctx context.Context, p pipeline, src *source, tells bool) (s bench.Sample, err error) {
	s = bench.Sample{Ops: 1, Parts: []bench.Part{&moves.Transfer{PlainBytes: src.plain}}, Processes: make(map[string]measure.Usage)}
	var before measure.Usage
	pid := r.engine.pid()
	if pid != 0 {
		if before, err = measure.Tree(pid); err != nil {
			return s, fmt.Errorf("read usage of the server: %w", err)
		}
	}
	machine := measure.ReadMachine()
	var said *bytes.Buffer
	if tells {
		p, said = listening(p)
	}
	u, err := run(ctx, p)
	if err != nil {
		return s, err
	}
	if tells {
		if moves.Of(s.Parts).Inside, err = insideOf(said.Bytes()); err != nil {
			return s, err
		}
	}
	activity := measure.ReadMachine().Since(machine)
	s.Seconds, moves.Of(s.Parts).PeakBytes, s.Machine = u.seconds, u.peak, &activity
	s.Processes[bench.RoleClient] = u.process
	if pid != 0 {
		after, err := measure.Tree(pid)
		if err != nil {
			return s, fmt.Errorf("read usage of the server: %w", err)
		}
		s.Processes[bench.RoleServer] = after.Since(before)
	}
	return s, nil
}

// memory measures weir's peak at a tenth of the first shape and at the whole.
func (r *rig) memory(ctx context.Context, src *source) error {
	w := weirWay(r.o.Binary, "weir", []string{"--jobs=" + strconv.Itoa(r.jobs), "--compress=zstd:1"}, []string{"--jobs=" + strconv.Itoa(r.jobs)})
	sizes := []int64{max(src.size.Bytes/10, 1), src.size.Bytes}
	// One size after the other: filling a database for each round would take longer than all
	// rounds, and memory does not drift as speed does.
	e := r.experiment("memory", src)
	e.Title = fmt.Sprintf("Peak memory of weir at %s and %s", sizeText(sizes[0]), sizeText(sizes[1]))
	e.Rounds = min(r.o.Plan.Rounds, 3)
	e.Factors = map[string]string{"engine": string(r.o.Engine), "shape": src.size.Shape, "seed": strconv.FormatUint(r.o.Seed, 10), "jobs": strconv.Itoa(r.jobs)}
	for _, bytes := range sizes {
		for _, kind := range []string{dumps, restores} {
			way := map[string]string{dumps: "backup", restores: "restore"}[kind]
			e.Sides = append(e.Sides, bench.Side{
				Name:    fmt.Sprintf("%s, %s", way, sizeText(bytes)),
				Factors: map[string]string{"way": way, "bytes": strconv.FormatInt(bytes, 10)},
				Run: func(ctx context.Context, _ int) (bench.Sample, error) {
					src, err := r.source(ctx, Size{src.size.Shape, bytes})
					if err != nil {
						return bench.Sample{}, err
					}
					if kind == dumps {
						return r.dump(ctx, w, src)
					}
					return r.restore(ctx, w, src)
				},
			})
		}
	}
	_, err := r.Measure(ctx, e, r.env, r.o.Out)
	return err
}
