package mysql

// This file is about long texts, which are read away from the loop.
