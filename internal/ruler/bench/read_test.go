package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func encoded(t *testing.T, r *Result) []byte {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBrokenResultsAreNamed(t *testing.T) {
	good := encoded(t, result(testCase("a", "0", 1000, 8)))
	newer := bytes.Replace(good, []byte(Schema), []byte("weir.bench/2"), 1)
	for _, tc := range []struct {
		name string
		in   []byte
		want error
		text string
	}{
		{"empty", nil, ErrEmptyFile, "empty"},
		{"blank", []byte(" \n"), ErrEmptyFile, "empty"},
		{"cut in half", good[:len(good)/2], ErrTruncated, "cut short"},
		{"cut by a byte", good[:len(good)-1], ErrTruncated, "cut short"},
		{"newer", newer, ErrOtherSchema, "version 2, this program reads version 1"},
		{"newer with other types", []byte(`{"schema":"weir.bench/2","cases":7}`), ErrOtherSchema, "version 2"},
		{"another schema", []byte(`{"schema":"weir.report/1"}`), ErrNotResult, `"weir.report/1"`},
		{"no schema", []byte(`{"a":1}`), ErrNotResult, "names no schema"},
		{"text", []byte("ops per second: 5\n"), ErrNotResult, "not a result"},
		{"a list", []byte("[1,2"), ErrNotResult, "not a result"},
	} {
		_, err := ReadResult(bytes.NewReader(tc.in))
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: error %v, want %v with %q", tc.name, err, tc.want, tc.text)
		}
	}
	if _, err := ReadResult(bytes.NewReader(good)); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

func TestReadPath(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadPath(dir); !errors.Is(err, ErrNotResult) {
		t.Errorf("an empty directory: %v", err)
	}
	write("x/results.jsonl", []byte("{}\n"))
	if _, err := ReadPath(dir); !errors.Is(err, ErrUnfinished) || !strings.Contains(err.Error(), "--resume --out "+dir) {
		t.Errorf("samples alone: %v", err)
	}
	good := encoded(t, result(testCase("a", "0", 1000, 8)))
	write("x/x.json", good)
	write("report.json", []byte(`{"title":"t"}`))
	write("y/y.json", good)
	write("y/deep/z.json", []byte("not looked at"))
	got, err := ReadPath(dir)
	if err != nil || len(got) != 2 {
		t.Errorf("%d results, %v", len(got), err)
	}
	if got, err := ReadPath(filepath.Join(dir, "x", "x.json")); err != nil || len(got) != 1 {
		t.Errorf("a file: %d results, %v", len(got), err)
	}
	write("y/part/results.jsonl", nil)
	if _, err := ReadPath(dir); !errors.Is(err, ErrSeveralRuns) || !strings.HasSuffix(err.Error(), ": "+filepath.Join(dir, "y")) {
		t.Errorf("a run in a directory of it: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "y", "part")); err != nil {
		t.Fatal(err)
	}
	write("y/broken.json", good[:100])
	if _, err := ReadPath(dir); !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), "broken.json") {
		t.Errorf("with a broken one: %v", err)
	}
	if _, err := ReadPath(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
}

func FuzzReadResult(f *testing.F) {
	f.Add([]byte(`{"schema":"weir.bench/1","env":{"time":"2026-01-02T03:04:05Z","cpu":"c","cores":1,"kernel":"k","command":["w"]},` +
		`"experiment":{"baseline":"a","sweep":"n"},"cases":[{"name":"a","factors":{"n":"1"},"samples":[{"seconds":1,"ops":5}]},` +
		`{"name":"b","factors":{"n":"2"},"samples":[{"seconds":1,"ops":9,"boundary":{"segments":[{"name":"queue"}]}}]}]}`))
	f.Add([]byte(`{"schema":"weir.bench/1","env":{"time":"2026-01-02T03:04:05Z","cpu":"c","cores":1,"kernel":"k","command":["w"]},"cases":[{"name":"a","samples":[{"latency":null}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadResult(bytes.NewReader(b))
		if err != nil {
			return
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("read, and cannot be written: %v", err)
		}
	})
}

// A file that cannot be written leaves what was there, and nothing beside it.
func TestReplaceLeavesNothingHalf(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.html")
	if err := ReplaceFile(path, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "taken", "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceFile(filepath.Join(dir, "taken"), []byte("second")); err == nil {
		t.Error("a directory was replaced by a file")
	}
	if err := ReplaceFile(filepath.Join(dir, "none", "x"), nil); err == nil {
		t.Error("a file was written into a directory that is not there")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v in the directory, %v; want report.html and taken", entries, err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "first" {
		t.Errorf("%q, %v", b, err)
	}
}
