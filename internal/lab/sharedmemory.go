package lab

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// reclaimSharedMemory removes what a killed postmaster leaves in the kernel: a small System V
// segment, of which there may be 4096, and files in /dev/shm, which are in memory. A server
// that starts again on the same data directory does so itself; this is for those that never
// will. A server that stopped cleanly has no postmaster.pid.
func reclaimSharedMemory(dataDir string) {
	path := filepath.Join(dataDir, "postmaster.pid")
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return
	}
	id, ok := parseSegmentID(string(content))
	if !ok {
		return
	}
	var desc unix.SysvShmDesc
	if _, err := unix.SysvShmCtl(id, unix.IPC_STAT, &desc); err != nil {
		return
	}
	// The server wrote the file; the segment must at least belong to the same user.
	if desc.Nattch != 0 || desc.Perm.Uid != file.Uid {
		return
	}
	if segment, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY); err == nil {
		if control, ok := controlHandle(segment); ok {
			removeDynamic(control, file.Uid)
		}
		_ = unix.SysvShmDetach(segment)
	}
	_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
}

// parseSegmentID finds the segment's id in postmaster.pid: line 7 is "key id".
func parseSegmentID(content string) (int, bool) {
	lines := strings.Split(content, "\n")
	if len(lines) < 7 {
		return 0, false
	}
	f := strings.Fields(lines[6])
	if len(f) != 2 {
		return 0, false
	}
	id, err := strconv.Atoi(f[1])
	return id, err == nil
}

// The layouts of PostgreSQL 9.4 to 18 on 64-bit machines (PGShmemHeader in pg_shmem.h,
// dsm_control_header in dsm.c). Each starts with a magic number: a version that changes the
// layout changes that, too, and is skipped.
const (
	segmentMagic  = 679834894
	segmentHandle = 24 // offset of the control segment's handle

	controlMagic    = 0x9a503d32
	controlItems    = 16 // offset of the first item
	controlItemSize = 40 // handle, reference count, and fields that do not matter here
)

// controlHandle reads the handle of the control segment of dynamic segments from the start of
// the System V segment.
func controlHandle(segment []byte) (uint32, bool) {
	if len(segment) < segmentHandle+4 || binary.NativeEndian.Uint32(segment) != segmentMagic {
		return 0, false
	}
	h := binary.NativeEndian.Uint32(segment[segmentHandle:])
	return h, h != 0
}

// dynamicHandles lists the segments that the control segment lists as in use.
func dynamicHandles(control []byte) []uint32 {
	if len(control) < controlItems || binary.NativeEndian.Uint32(control) != controlMagic {
		return nil
	}
	var handles []uint32
	items := control[controlItems:]
	for n := binary.NativeEndian.Uint32(control[4:]); n > 0 && len(items) >= controlItemSize; n-- {
		if refs := binary.NativeEndian.Uint32(items[4:]); refs != 0 {
			handles = append(handles, binary.NativeEndian.Uint32(items))
		}
		items = items[controlItemSize:]
	}
	return handles
}

// removeDynamic removes the dynamic segments of the server with the given control segment, if
// they belong to uid.
func removeDynamic(control, uid uint32) {
	path := dynamicPath(control)
	content, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for _, h := range append(dynamicHandles(content), control) {
		var st unix.Stat_t
		if path := dynamicPath(h); unix.Lstat(path, &st) == nil && st.Uid == uid {
			_ = os.Remove(path)
		}
	}
}

// sharedMemoryDir is the directory of shm_open's files.
const sharedMemoryDir = "/dev/shm"

func dynamicPath(handle uint32) string {
	return fmt.Sprintf("%s/PostgreSQL.%d", sharedMemoryDir, handle)
}

// roomForSegments reports whether a server can create its segments in dir: in some containers
// there is no such directory, or it is read-only, or has 64 KiB. A parallel query needs some
// megabytes.
func roomForSegments(dir string) bool {
	var fs unix.Statfs_t
	if unix.Access(dir, unix.W_OK) != nil || unix.Statfs(dir, &fs) != nil {
		return false
	}
	return fs.Bavail*uint64(fs.Bsize) >= 16<<20
}
