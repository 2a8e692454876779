package archive

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// runTool runs a program in dir and returns its output.
func runTool(t *testing.T, dir string, in []byte, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if in != nil {
		cmd.Stdin = bytes.NewReader(in)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, stderr.Bytes())
	}
	return out
}

// TestStandardToolsReadChunks checks that standard tools can read chunks, and that weir can read
// what such a tool has compressed again.
func TestStandardToolsReadChunks(t *testing.T) {
	t.Parallel()
	path := DataPath("shop", "public", "orders", 1, "copy")
	for tool, levels := range map[string][]int{"gzip": {0, 1, 9}, "zstd": {0, 1, 3, 6, 12}, "lz4": {0, 1, 3, 9}} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%d", tool, level), func(t *testing.T) {
				t.Parallel()
				_, dir, m := backupFiles(t, Options{Compression: Compression{Codec: Codec(tool), Level: level}})
				i := slices.IndexFunc(m.Chunks, func(c Chunk) bool { return c.Path == path })
				runTool(t, dir, nil, tool, "-t", m.Chunks[i].File)
				plain := runTool(t, dir, nil, tool, "-dc", m.Chunks[i].File)
				if !bytes.Equal(plain, fixture()[path]) {
					t.Error("the tool reads other bytes than were written")
				}
				for _, c := range m.Chunks {
					runTool(t, dir, nil, tool, "-t", c.File) // empty ones, too
				}
				packed := runTool(t, dir, plain, tool, "-c")
				d, err := NewDecoder(bytes.NewReader(packed), Codec(tool))
				if err != nil {
					t.Fatal(err)
				}
				var got bytes.Buffer
				if _, err := got.ReadFrom(d); err != nil || !bytes.Equal(got.Bytes(), plain) {
					t.Errorf("what the tool packed reads as %d bytes, want %d: %v", got.Len(), len(plain), err)
				}
			})
		}
	}
}

func TestSha256sumReadsTheList(t *testing.T) {
	t.Parallel()
	_, dir, _ := backupFiles(t, Options{})
	runTool(t, dir, nil, "sha256sum", "--quiet", "-c", sumsName)
}

// TestAgeToolOpensChunks runs the age program, which need not be installed.
func TestAgeToolOpensChunks(t *testing.T) {
	t.Parallel()
	keys := ageKeys(t)
	_, dir, m := backupFiles(t, Options{Encryption: keys.options, Compression: Compression{Codec: None}})
	key := filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(key, []byte(keys.identity+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := DataPath("shop", "public", "orders", 1, "copy")
	i := slices.IndexFunc(m.Chunks, func(c Chunk) bool { return c.Path == path })
	if got := runTool(t, dir, nil, "age", "-d", "-i", key, m.Chunks[i].File); !bytes.Equal(got, fixture()[path]) {
		t.Error("age reads other bytes than were written")
	}
}

// TestSSHRecipients uses keys as ssh-keygen makes them.
func TestSSHRecipients(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ed25519", "rsa"} {
		dir := t.TempDir()
		runTool(t, dir, nil, "ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "somebody@somewhere", "-f", "key")
		public, err := os.ReadFile(filepath.Join(dir, "key.pub"))
		if err != nil {
			t.Fatal(err)
		}
		private, err := os.ReadFile(filepath.Join(dir, "key"))
		if err != nil {
			t.Fatal(err)
		}
		repo, files, _ := backupFiles(t, Options{Encryption: EncryptionOptions{Recipients: []string{string(public)}, Passphrase: "or this", PassphraseWork: 10}})
		manifest, err := os.ReadFile(filepath.Join(files, manifestName))
		if err != nil || bytes.Contains(manifest, []byte("somewhere")) {
			t.Errorf("the manifest names a host, or %v", err)
		}
		for _, keys := range []ReadOptions{{Identities: [][]byte{private}}, {Passphrase: "or this"}} {
			r, err := Open(t.Context(), repo, "b", keys)
			if err != nil {
				t.Fatal(err)
			}
			checkContent(t, r, fixture())
		}
	}
}
