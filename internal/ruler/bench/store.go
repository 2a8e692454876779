package bench

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/measure"
)

// samplesFile is the name of the file with all samples.
const samplesFile = "results.jsonl"

// Store keeps the results in a directory: results.jsonl with one line for each sample, written
// and flushed as soon as it is taken, and NAME.json and NAME.csv for each finished experiment.
// It is not safe for concurrent use.
type Store struct {
	dir     string
	log     *os.File
	samples map[string]Sample
	origins map[string]Origin
}

// record is a line of results.jsonl.
type record struct {
	Schema  string            `json:"schema"`
	Key     string            `json:"key"`
	Side    string            `json:"side"`
	Factors map[string]string `json:"factors,omitempty"`
	Sample  Sample            `json:"sample"`
	Origin  Origin            `json:"origin"`
}

// Origin identifies the program and the machine that took a sample. Samples of two origins are
// not mixed without a warning.
type Origin struct {
	Commit string `json:"commit,omitempty"` // as in measure.Environment
	CPU    string `json:"cpu,omitempty"`
	Kernel string `json:"kernel,omitempty"`
}

func (o Origin) String() string {
	return fmt.Sprintf("commit %s on %s, kernel %s", cmp.Or(o.Commit, "unknown"), o.CPU, o.Kernel)
}

func originOf(e *measure.Environment) Origin {
	return Origin{Commit: e.Commit, CPU: e.CPU, Kernel: e.Kernel}
}

// OpenStore opens a directory, and creates it if needed. With resume, the samples of an
// interrupted run are kept and need not be taken again; a last line that a crash truncated is
// dropped. Without resume, it refuses a directory that already holds samples, so that no
// measurement is overwritten. It refuses one that another store has open. The parts of samples
// that are not about the given subjects are kept as they are.
func OpenStore(dir string, resume bool, subjects ...*Subject) (_ *Store, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make result directory: %w", err)
	}
	path := filepath.Join(dir, samplesFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open results: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// Two runs that write to the same file would destroy each other's samples.
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w: another run writes there; wait until it has ended, or name another directory", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if len(b) > 0 && !resume {
		return nil, fmt.Errorf("%s already holds results: resume them with --resume, or name another directory", dir)
	}
	records, whole, err := readRecords(b, subjects)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if err := f.Truncate(int64(whole)); err != nil {
		return nil, fmt.Errorf("drop torn line: %w", err)
	}
	if _, err := f.Seek(int64(whole), io.SeekStart); err != nil {
		return nil, fmt.Errorf("open results: %w", err)
	}
	store := &Store{dir: dir, log: f, samples: make(map[string]Sample), origins: make(map[string]Origin)}
	for _, r := range records {
		store.samples[r.Key], store.origins[r.Key] = r.Sample, r.Origin
	}
	return store, nil
}

// readRecords returns all complete lines, in order, and their length in bytes.
func readRecords(b []byte, subjects []*Subject) (records []record, whole int, err error) {
	for line := 1; ; line++ {
		end := bytes.IndexByte(b[whole:], '\n')
		if end < 0 {
			return records, whole, nil
		}
		var r record
		if err := json.Unmarshal(b[whole:whole+end], &r); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", line, err)
		}
		if err := checkSchema(r.Schema); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", line, err)
		}
		if err := r.Sample.decodeParts(subjects); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", line, err)
		}
		records = append(records, r)
		whole += end + 1
	}
}

// Sample returns the sample of a key, if the store has it.
func (s *Store) Sample(key string) (Sample, bool) {
	v, ok := s.samples[key]
	return v, ok
}

// Origin returns the origin of the sample of a key, if the store has it.
func (s *Store) Origin(key string) (Origin, bool) {
	o, ok := s.origins[key]
	return o, ok
}

// Append stores a sample. It is on disk when Append returns.
func (s *Store) Append(key string, side Side, sample Sample, origin Origin) error {
	b, err := json.Marshal(record{Schema, key, side.Name, side.Factors, sample, origin})
	if err != nil {
		return fmt.Errorf("encode sample: %w", err)
	}
	if _, err := s.log.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write sample: %w", err)
	}
	if err := s.log.Sync(); err != nil {
		return fmt.Errorf("flush sample: %w", err)
	}
	s.samples[key], s.origins[key] = sample, origin
	return nil
}

// Finish writes the result of an experiment next to the samples.
func (s *Store) Finish(r *Result) error { return r.WriteFiles(s.dir) }

// WriteFiles writes NAME.json and NAME.csv into a directory, where NAME is the name of the
// experiment. Each atomically replaces an older file.
func (r *Result) WriteFiles(dir string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	base := filepath.Join(dir, r.Experiment.Name)
	if err := ReplaceFile(base+".json", append(b, '\n')); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	var c bytes.Buffer
	if err := WriteCSV(&c, r); err != nil {
		return err
	}
	if err := ReplaceFile(base+".csv", c.Bytes()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// ReplaceFile replaces a file atomically: a reader, even after a crash, finds the old or the
// new content. A write that fails, for example because the disk is full, leaves no temporary
// file.
func ReplaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// Close closes the files.
func (s *Store) Close() error { return s.log.Close() }

// WriteCSV writes one row for each case, metric and round, and one row with an empty round for
// each summary: experiment, case, metric, unit, round, value, lo, hi.
func WriteCSV(w io.Writer, r *Result) error {
	c := csv.NewWriter(w)
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	rows := [][]string{{"experiment", "case", "metric", "unit", "round", "value", "lo", "hi"}}
	for _, k := range r.Cases {
		for _, m := range Metrics(r.Subjects()...) {
			for j := range k.Samples {
				if v, ok := m.Of(&k.Samples[j]); ok {
					rows = append(rows, []string{r.Experiment.Name, k.Name, m.Key, m.Unit, strconv.Itoa(k.Samples[j].Round), num(v), "", ""})
				}
			}
			if s, ok := k.Summary[m.Key]; ok {
				rows = append(rows, []string{r.Experiment.Name, k.Name, m.Key, m.Unit, "", num(s.Median), num(s.Lo), num(s.Hi)})
			}
		}
	}
	if err := c.WriteAll(rows); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}
