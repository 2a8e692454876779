package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/cli"
)

// Why a file is not a usable result. Errors of ReadResult, ReadFile and ReadPath match one of
// these, or come from the file system.
var (
	ErrEmptyFile   = errors.New("the file is empty")
	ErrTruncated   = errors.New("the file ends in the middle of a result: it was cut short, or its run was killed while it wrote")
	ErrNotResult   = errors.New("this is not a result of weir")
	ErrOtherSchema = errors.New("the result is of a version that this program does not know")
	ErrUnfinished  = errors.New("the run did not finish")
	ErrSeveralRuns = errors.New("the directory holds several runs: name one of them")
)

// ReadResult reads a result and computes summaries and findings anew, so that a later version
// of weir judges old samples by its own rules. It understands the parts of samples that are
// about the given subjects, and keeps others as they are.
func ReadResult(r io.Reader, subjects ...*Subject) (*Result, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, fmt.Errorf("read result: %w", ErrEmptyFile)
	}
	// Check the version first: in another version, even the types of the fields may differ.
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("read result: %w", brokenJSON(b, err))
	}
	if err := checkSchema(head.Schema); err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	var out Result
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	if err := out.Validate(); err != nil {
		return nil, err
	}
	for _, c := range out.Cases {
		for i := range c.Samples {
			if err := c.Samples[i].decodeParts(subjects); err != nil {
				return nil, fmt.Errorf("read result: %s, %w", c.Name, err)
			}
		}
	}
	out.Evaluate()
	return &out, nil
}

// brokenJSON distinguishes a truncated result from a file that never was one.
func brokenJSON(b []byte, err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && syntax.Offset >= int64(len(b)) && bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		return fmt.Errorf("%w (%d bytes)", ErrTruncated, len(b))
	}
	return fmt.Errorf("%w: %w", ErrNotResult, err)
}

// checkSchema says how a schema differs from this program's.
func checkSchema(schema string) error {
	name, version, _ := strings.Cut(schema, "/")
	own, ownVersion, _ := strings.Cut(Schema, "/")
	switch {
	case schema == Schema:
		return nil
	case schema == "":
		return fmt.Errorf("%w: it names no schema", ErrNotResult)
	case name != own:
		return fmt.Errorf("%w: its schema is %q, and results have %q", ErrNotResult, schema, Schema)
	default:
		return fmt.Errorf("%w: schema %s version %s, this program reads version %s; use the weir that wrote it", ErrOtherSchema, name, version, ownVersion)
	}
}

// ReadFile reads the result in a file.
func ReadFile(path string, subjects ...*Subject) (*Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	defer f.Close()
	r, err := ReadResult(f, subjects...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// ReadPath reads the result in a file, or all results in a directory and its direct
// subdirectories, in the order of their names. In a directory it skips files that are not
// results, such as reports, but fails on broken results, and if the directory is not a run but
// holds runs.
func ReadPath(path string, subjects ...*Subject) ([]*Result, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if !info.IsDir() {
		r, err := ReadFile(path, subjects...)
		if err != nil {
			return nil, err
		}
		return []*Result{r}, nil
	}
	runs, err := fs.Glob(os.DirFS(path), "*/*/"+samplesFile)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if len(runs) > 0 {
		for i, name := range runs {
			run, _, _ := strings.Cut(name, "/")
			runs[i] = filepath.Join(path, run)
		}
		return nil, fmt.Errorf("%s: %w: %s", path, ErrSeveralRuns, strings.Join(slices.Compact(runs), ", "))
	}
	var files []string
	unfinished := ""
	err = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(path, name)
		if err != nil {
			return err
		}
		switch depth := strings.Count(below, string(filepath.Separator)); {
		case e.IsDir() && depth >= 1:
			return fs.SkipDir
		case e.IsDir():
		case e.Name() == samplesFile:
			unfinished = name
		case filepath.Ext(name) == ".json":
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	slices.Sort(files)
	var out []*Result
	for _, name := range files {
		r, err := ReadFile(name, subjects...)
		if errors.Is(err, ErrNotResult) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	switch {
	case len(out) > 0:
		return out, nil
	case unfinished != "":
		return nil, fmt.Errorf("%s: %w: there are samples, but no result; repeat the command with --resume --out %s", unfinished, ErrUnfinished, cli.ShellWord(path))
	default:
		return nil, fmt.Errorf("%s: %w: it contains no result", path, ErrNotResult)
	}
}
