#!/bin/sh
# A disk for nbdkit's plugin `sh` that writes down what it is told: each write and each flush is a line of
# $RECORD/log, the bytes of the writes follow each other in $RECORD/data. One request at a time.
case "$1" in
thread_model) echo serialize_all_requests ;;
get_size) stat -c %s "$RECORD/image" ;;
can_write | can_flush) ;;
pread) dd if="$RECORD/image" iflag=skip_bytes,count_bytes skip="$4" count="$3" bs=64k status=none ;;
pwrite)
    tee -a "$RECORD/data" |
        dd of="$RECORD/image" iflag=fullblock oflag=seek_bytes seek="$4" bs=64k conv=notrunc status=none
    echo "write $4 $3" >>"$RECORD/log"
    ;;
flush) echo flush >>"$RECORD/log" ;;
*) exit 2 ;;
esac
