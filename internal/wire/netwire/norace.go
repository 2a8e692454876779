//go:build linux && !race

package netwire

func beforeWrite() {}

func afterRead(uintptr) {}
