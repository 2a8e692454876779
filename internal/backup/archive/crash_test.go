package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// crashChunks is a backup of many chunks, large and small.
func crashChunks() map[string][]byte {
	data := map[string][]byte{}
	for i := range 60 {
		data[DataPath("d", "", fmt.Sprintf("t%02d", i), 1, "tsv")] = copyRows(uint64(i), 1000+i%7*20_000)
	}
	return data
}

// writeForEver is the victim: it begins or resumes the backup "b" in a directory,
// says each chunk that is complete and, when all are, waits for its death.
func writeForEver(dir string) error {
	ctx := context.Background()
	repo, err := OpenRepository(ctx, dir)
	if err != nil {
		return err
	}
	_, err = os.Stat(dir + "/b")
	w, err := Create(ctx, repo, Options{ID: "b", Resume: err == nil})
	if err != nil {
		return err
	}
	for path, data := range crashChunks() {
		if _, done := w.Done(path); done {
			continue
		}
		if err := writeChunk(ctx, w, ChunkInfo{Path: path}, data); err != nil {
			return err
		}
		fmt.Println(path)
	}
	fmt.Println("all")
	select {}
}

// TestKilledWriterIsResumed kills a writer again and again, wherever it is. What
// it said was complete must be complete, and the end must be whole.
func TestKilledWriterIsResumed(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	repo, err := OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for kill := range 6 {
		victim := exec.CommandContext(t.Context(), self)
		victim.Env = append(os.Environ(), "WEIR_TEST_ARCHIVE_WRITER="+dir)
		victim.Stderr = os.Stderr
		victim.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := victim.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 1+rand.IntN(15) && lines.Scan(); n++ {
			if lines.Text() == "all" {
				break
			}
			said[lines.Text()] = true
		}
		if kill == 0 {
			if _, err := Create(t.Context(), repo, Options{ID: "b", Resume: true}); !errors.Is(err, ErrLocked) {
				t.Errorf("resume beside a living writer: %v", err)
			}
			if _, err := Create(t.Context(), repo, Options{ID: "b"}); !errors.Is(err, ErrLocked) {
				t.Errorf("the same id beside a living writer: %v", err)
			}
			if e, err := List(t.Context(), repo, time.Now()); err != nil || len(e) != 1 || e[0].State != Running {
				t.Errorf("list beside a living writer: %+v, %v", e, err)
			}
		}
		if err := victim.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// Lines written between the last one read and the process's death count, too.
		for lines.Scan() {
			if lines.Text() != "all" {
				said[lines.Text()] = true
			}
		}
		if err := victim.Wait(); err == nil {
			t.Fatal("the victim ended by itself")
		}
		checkSaid(t, repo, said)
	}
	finishKilled(t, repo, said)
}

// checkSaid compares what the victim said with what a resumed writer finds.
func checkSaid(t *testing.T, repo *Repository, said map[string]bool) {
	t.Helper()
	if e, err := List(t.Context(), repo, time.Now()); err != nil || len(e) != 1 || e[0].State != Incomplete || !strings.Contains(e[0].Reason, "died") {
		t.Errorf("list after the death: %+v, %v", e, err)
	}
	if _, err := Open(t.Context(), repo, "b", ReadOptions{}); !errors.Is(err, ErrIncomplete) {
		t.Errorf("open what is incomplete: %v", err)
	}
	done, err := readJournals(t.Context(), repo.Storage(), "b/")
	if err != nil {
		t.Fatal(err)
	}
	for path := range said {
		c, ok := done[path]
		if !ok {
			t.Errorf("%s was said to be complete and is not in the journal", path)
			continue
		}
		if info, err := repo.Storage().Stat(t.Context(), "b/"+c.File); err != nil || info.Size != c.StoredBytes {
			t.Errorf("%s was said to be complete: %+v, %v", path, info, err)
		}
	}
}

func finishKilled(t *testing.T, repo *Repository, said map[string]bool) {
	t.Helper()
	w, err := Create(t.Context(), repo, Options{ID: "b", Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	if s := w.Stats(); s.ResumedChunks < len(said) || s.ResumedPlainBytes == 0 {
		t.Errorf("%d chunks were resumed, the victim said %d", s.ResumedChunks, len(said))
	}
	if _, err := writeAll(t.Context(), w, crashChunks(), Manifest{}); err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), repo, "b", ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkContent(t, r, crashChunks())
	mustVerify(t, r)
	if _, err := Create(t.Context(), repo, Options{ID: "b"}); !errors.Is(err, ErrExist) {
		t.Errorf("the id of a complete backup: %v", err)
	}
	if _, err := Create(t.Context(), repo, Options{ID: "b", Resume: true}); !errors.Is(err, ErrExist) {
		t.Errorf("resume what is complete: %v", err)
	}
	mustVerify(t, r)
}
