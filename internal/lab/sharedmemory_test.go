package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

var dynamicFile = regexp.MustCompile(`/dev/shm/PostgreSQL\.\d+`)

func TestKilledServerLeavesNoSharedMemory(t *testing.T) {
	findPostgresOrSkip(t)
	p, err := StartPostgres(t.Context(), PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(context.Background())
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	files := dynamicFile.FindAllString(string(maps), -1)
	pidFile, err := os.ReadFile(p.DataDir() + "/postmaster.pid")
	if err != nil {
		t.Fatal(err)
	}
	segment, ok := parseSegmentID(string(pidFile))
	if len(files) == 0 || !ok {
		t.Fatalf("the server has segment %d (%v) and files %v: nothing to test", segment, ok, files)
	}
	p.Kill()
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left (%v)", path, err)
		}
	}
	var desc unix.SysvShmDesc
	if _, err := unix.SysvShmCtl(segment, unix.IPC_STAT, &desc); err == nil {
		t.Errorf("segment %d is left", segment)
	}
}

func TestParseSegmentID(t *testing.T) {
	for content, want := range map[string]int{
		"1\n/d\n3\n5432\n/s\nlocalhost\n  10001670    589865\nready\n": 589865,
		"1\n/d\n3\n5432\n/s\nlocalhost\n":                              -1, // still starting
		"1\n/d\n3\n5432\n/s\nlocalhost\n10001670\nready\n":             -1,
		"1\n/d\n3\n5432\n/s\nlocalhost\n10001670 x\nready\n":           -1,
		"": -1,
	} {
		if got, ok := parseSegmentID(content); ok != (want >= 0) || ok && got != want {
			t.Errorf("parseSegmentID(%q) = %d, %v; want %d", content, got, ok, want)
		}
	}
}

// controlSegment lays out a directory of dynamic segments as PostgreSQL does.
func controlSegment(magic, n uint32, items ...[2]uint32) []byte {
	b := make([]byte, controlItems+len(items)*controlItemSize)
	binary.NativeEndian.PutUint32(b, magic)
	binary.NativeEndian.PutUint32(b[4:], n)
	for i, item := range items {
		at := b[controlItems+i*controlItemSize:]
		binary.NativeEndian.PutUint32(at, item[0])
		binary.NativeEndian.PutUint32(at[4:], item[1])
	}
	return b
}

func TestDynamicHandles(t *testing.T) {
	tests := []struct {
		name    string
		control []byte
		want    []uint32
	}{
		{"in use and free", controlSegment(controlMagic, 3, [2]uint32{7, 1}, [2]uint32{8, 0}, [2]uint32{9, 2}), []uint32{7, 9}},
		{"fewer than there is room for", controlSegment(controlMagic, 1, [2]uint32{7, 1}, [2]uint32{8, 1}), []uint32{7}},
		{"count beyond the end", controlSegment(controlMagic, 1<<31, [2]uint32{7, 1}), []uint32{7}},
		{"another layout", controlSegment(controlMagic+1, 1, [2]uint32{7, 1}), nil},
		{"empty", nil, nil},
	}
	for _, tt := range tests {
		if got := dynamicHandles(tt.control); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func FuzzSharedMemory(f *testing.F) {
	f.Add(controlSegment(controlMagic, 1, [2]uint32{7, 1}))
	f.Add(controlSegment(segmentMagic, 1, [2]uint32{7, 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := controlHandle(b); ok && h == 0 {
			t.Error("handle 0 counts as one")
		}
		if got := dynamicHandles(b); len(got)*controlItemSize > len(b) {
			t.Errorf("%d handles in %d bytes", len(got), len(b))
		}
	})
}

// Where shared memory has no room, the server keeps its segments among its files.
func TestRoomForSegments(t *testing.T) {
	if !roomForSegments(t.TempDir()) {
		t.Error("there is no room in a directory for temporary files")
	}
	for _, dir := range []string{"/proc", t.TempDir() + "/none"} {
		if roomForSegments(dir) {
			t.Errorf("there is room in %s", dir)
		}
	}
}
