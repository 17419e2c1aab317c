"""What was published about MobileNetV2 on ImageNet, batch 96. Not measured here; each figure is of one run."""

MODEL = "w32"
IMAGES = 1_281_167  # ImageNet's training images
EPOCH_HOURS = {
    "one CPU": 20.0,
    "one K80": 3.5,
    "four K80, 224 px": 1.0,
    "four K80, 64 px, images prepared": 0.25,
}
SMALL_OVER_LARGE = 4.0  # 15 minutes at 64 px against 1 h at 224 px
GPUS, SPEED_UP = 4, 3.5  # how much faster four K80 are than one
EFFICIENCY = SPEED_UP / GPUS
